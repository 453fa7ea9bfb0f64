"""One rank of a data-parallel training, as a user would write it.

    python training_rank.py ADDRESS FOLDER RANK WORLD DIES

How many batches there are is unknown, as the pipeline filters. Each rank saves its model's and its data's state every
few steps, and goes on from the last step that all have saved. If DIES is not negative, the last rank dies at that step.
"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import millrace as mr

EVERY = 5


def example(number):
    return {"number": number, "x": np.full(3, number % 7, np.float32)}


def train(address, folder, rank, world, dies):
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ds = mr.Dataset.range(900).filter(lambda number: number % 3 > 0).map(example).shuffle(100, seed=1).batch(4)
    with ds.distribute(
        address, job_name="training", num_consumers=world, consumer_index=rank, equal_steps=True, tasks=30
    ) as part:
        batches, step, seen = part.torch(), 0, []
        if (folder / "saved").exists():
            step = int((folder / "saved").read_text())
            saved = torch.load(folder / f"{step}-{rank}.pt", weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            batches.load_state_dict(saved["data"])
            seen = saved["seen"]
        for batch in batches:
            if step == dies and rank == world - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = model(batch["x"]).square().mean()
            optimizer.zero_grad()
            loss.backward()  # all ranks wait for one another here
            optimizer.step()
            step += 1
            seen += batch["number"].tolist()
            if step % EVERY == 0:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**states, "data": batches.state_dict(), "seen": seen}, folder / f"{step}-{rank}.pt")
                distributed.barrier()
                if rank == 0:
                    (folder / "saved.new").write_text(str(step))
                    (folder / "saved.new").rename(folder / "saved")
    weights = [parameter.tolist() for parameter in model.parameters()]
    (folder / f"end-{rank}.json").write_text(json.dumps({"steps": step, "seen": seen, "weights": weights}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    service, place, *numbers = sys.argv[1:]
    index, count, death = map(int, numbers)
    meeting = Path(place) / f"meeting-{death}"
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=index, world_size=count)
    train(service, Path(place), index, count, death)
    distributed.destroy_process_group()
