"""Two network namespaces joined by a link with delay and rate: ``python tunnel.py NAME DELAY_S BYTES_PER_S``.

Makes the namespaces NAME-a (10.97.0.1) and NAME-b (10.97.0.2), says "ready", or why it is not allowed to, and carries
packets until it is killed. Each direction has a queue of its own, of a quarter of a second; what does not fit is
dropped, as a router does. Stopping the process (SIGSTOP) is cutting the cable. Needs root, iproute2 and /dev/net/tun;
who started it removes the namespaces.
"""

import fcntl
import os
import selectors
import struct
import subprocess
import sys
import time
from collections import deque

ADDRESSES = {"a": "10.97.0.1", "b": "10.97.0.2"}
MTU = 9000

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_QUEUE_S = 0.25


def namespace(name, side):
    return f"{name}-{side}"


def make(name, side):
    """The device's file; what the namespace sends is read from it."""
    device = f"mr{os.getpid()}{side}"
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
    where = namespace(name, side)
    for command in (
        f"ip netns add {where}",
        f"ip link set {device} netns {where}",
        f"ip -n {where} addr add {ADDRESSES[side]}/24 dev {device}",
        f"ip -n {where} link set {device} mtu {MTU} txqueuelen 5000 up",
        f"ip -n {where} link set lo up",
    ):
        subprocess.run(command.split(), check=True)
    return file


class Direction:
    def __init__(self, source, target, delay, rate):
        self.source, self.target, self.delay, self.rate = source, target, delay, rate
        self.free_at = 0.0
        self.queue: deque[tuple[float, bytes]] = deque()

    def take(self):
        while True:
            try:
                packet = os.read(self.source, 65536)
            except BlockingIOError:
                return
            begins = max(self.free_at, time.monotonic())
            if begins - time.monotonic() < _QUEUE_S:
                self.free_at = begins + len(packet) / self.rate
                self.queue.append((self.free_at + self.delay, packet))

    def deliver(self):
        """Seconds until the next packet is due; None: there is none."""
        while self.queue:
            left = self.queue[0][0] - time.monotonic()
            if left > 0:
                return left
            os.write(self.target, self.queue.popleft()[1])
        return None


def main(name, delay, rate):
    try:
        a, b = make(name, "a"), make(name, "b")
    except (OSError, subprocess.CalledProcessError) as error:
        print(error)
        return
    directions = [Direction(a, b, float(delay), float(rate)), Direction(b, a, float(delay), float(rate))]
    selector = selectors.DefaultSelector()
    for each in directions:
        selector.register(each.source, selectors.EVENT_READ, each)
    print("ready", flush=True)
    while True:
        due = [left for each in directions if (left := each.deliver()) is not None]
        for key, _ in selector.select(min(due, default=None)):
            key.data.take()


if __name__ == "__main__":
    main(*sys.argv[1:])
