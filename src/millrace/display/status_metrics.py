"""Metrics of a service in Prometheus's text format, from its status message and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from millrace.display.plain_text import plain
from millrace.policies.figures import label

Sample = tuple[str, str, Mapping[str, str], float]
"""Name without ``millrace_``, kind, labels, value."""

HELP = {
    "workers": "Workers of the service that are there.",
    "job_workers": "Workers that serve a job.",
    "job_elements": "Elements of the newest epochs that were handed out.",
    "job_wait_ratio": "Share of a step's time that consumers wait for the service.",
    "operator_elements_total": "Elements that an operator gave.",
    "operator_bytes_total": "Bytes of the elements that an operator gave.",
    "operator_active_seconds_total": "Seconds that an operator's threads spent in it, in all workers.",
    "operator_cpu_seconds_total": "Processor time of these.",
    "source_requests_total": "Requests that a source made to its store.",
    "source_stored_bytes_total": "Bytes that a source had from its store.",
    "source_cached_bytes_total": "Bytes that a source had from cache servers in the place of its store.",
    "source_retried_total": "Requests to a store that were made again, as they had failed.",
    "source_hedged_total": "Requests to a store that were made a second time, as the first took long.",
    "source_wait_seconds_total": "Seconds in which somebody waited for a store.",
    "source_requests_under_way": "Requests to a store that are under way.",
    "source_cache_bytes": "Bytes that the segments of a cache server take.",
    "source_cache_items": "Items that a cache server keeps.",
    "source_cache_hits_total": "Items that were asked for and there.",
    "source_cache_hit_bytes_total": "Bytes of items that were asked for and there.",
    "source_cache_joined_total": "Items that were missing, and waited for as another worker was reading them.",
    "source_cache_misses_total": "Items that a worker was told to read from the store.",
    "source_cache_inserted_total": "Items that were inserted.",
    "source_cache_inserted_bytes_total": "Bytes of items that were inserted.",
    "source_cache_refused_total": "Inserted items that were not kept, for want of room.",
    "source_cache_wrong_total": "Inserted items that were not what their hash says, and nobody was given.",
    "source_cache_passed_on_total": "Reads that passed on to another worker, as the first one was gone or late.",
    "group_members": "Jobs that share one computation.",
    "group_outputs_produced_total": "Outputs that were computed for a group.",
    "group_outputs_given_total": "Outputs that members of a group were handed out, all together.",
    "group_saved_cpu_seconds_total": "Processor time that sharing has saved.",
    "group_window_bytes": "Bytes of outputs that lie in the workers of a group.",
    "group_window_hits": "Outputs that a member was sent after another one.",
    "member_elements_total": "Elements that a member of a group was handed out.",
    "member_skipped_total": "Elements that a member of a group missed, as the window had to make room.",
    "member_behind": "Outputs that another member has received, and this one has not.",
    "member_share_ratio": "Share of what the group takes that falls to a member now.",
}
"""By metric, what it is."""


def metrics(status: Mapping[str, Any]) -> str:
    """Write a status as metrics, to be put where the node exporter's textfile collector finds it, or answered."""
    by_name: dict[str, list[Sample]] = {}
    for sample in _samples(plain(status)):
        by_name.setdefault(sample[0], []).append(sample)
    lines = []
    for name, samples in by_name.items():
        lines += [f"# HELP millrace_{name} {HELP[name]}", f"# TYPE millrace_{name} {samples[0][1]}"]
        for _, _, labels, value in samples:
            written = ",".join(f'{key}="{label(text)}"' for key, text in labels.items())
            lines.append(f"millrace_{name}{f'{{{written}}}' if written else ''} {value}")
    return "\n".join([*lines, ""])


def _samples(status: Mapping[str, Any]) -> Iterator[Sample]:
    yield "workers", "gauge", {}, status["fleet"]["observed"]
    for job in status["jobs"]:
        names = {"job": job["name"]}
        yield "job_workers", "gauge", names, job["workers"]["observed"]
        yield "job_elements", "gauge", names, sum(epoch["elements"] for epoch in job["epochs"])
        if job["wait_share"] is not None:
            yield "job_wait_ratio", "gauge", names, job["wait_share"]
        for number, operator in enumerate(job["operators"]):
            yield from _of_operator({**names, "number": str(number), "operator": operator["operator"]}, operator)
        if job["group"] is not None:
            yield from _of_group(job["group"])
    for server in status.get("source_cache", {}).get("servers", ()):
        yield from _of_cache_server(server)


def _of_operator(names: Mapping[str, str], operator: Mapping[str, Any]) -> Iterator[Sample]:
    yield "operator_elements_total", "counter", names, operator["elements"]
    yield "operator_bytes_total", "counter", names, operator["bytes"]
    yield "operator_active_seconds_total", "counter", names, operator["active_s"]
    yield "operator_cpu_seconds_total", "counter", names, operator["cpu_s"]
    if not (operator["requests"] or operator["cached_bytes"] or operator["under_way"]):
        return  # it reads no store
    yield "source_requests_total", "counter", names, operator["requests"]
    yield "source_stored_bytes_total", "counter", names, operator["stored_bytes"]
    yield "source_cached_bytes_total", "counter", names, operator["cached_bytes"]
    yield "source_retried_total", "counter", names, operator["retried"]
    yield "source_hedged_total", "counter", names, operator["hedged"]
    yield "source_wait_seconds_total", "counter", names, operator["store_wait_s"]
    yield "source_requests_under_way", "gauge", names, operator["under_way"]


def _of_cache_server(server: Mapping[str, Any]) -> Iterator[Sample]:
    names, counts = {"server": server["address"]}, server["counts"]
    if server.get("zone"):
        names["zone"] = server["zone"]
    yield "source_cache_bytes", "gauge", names, counts["bytes"]
    yield "source_cache_items", "gauge", names, counts["items"]
    for name in ("hits", "joined", "misses", "inserted", "refused", "wrong", "passed_on"):
        yield f"source_cache_{name}_total", "counter", names, counts[name]
    for name in ("hit", "inserted"):
        yield f"source_cache_{name}_bytes_total", "counter", names, counts[f"{name}_bytes"]


def _of_group(group: Mapping[str, Any]) -> Iterator[Sample]:
    names = {"group": group["fingerprint"], "sharing": group["sharing"]}
    yield "group_members", "gauge", names, len(group["members"])
    yield "group_outputs_produced_total", "counter", names, group["made"]
    yield "group_outputs_given_total", "counter", names, group["given"]
    yield "group_saved_cpu_seconds_total", "counter", names, group["saved_core_s"]
    yield "group_window_bytes", "gauge", names, group["window"]["bytes"]
    yield "group_window_hits", "gauge", names, group["window"]["hits"]  # less once a worker leaves
    for each in group["members"]:
        own = {**names, "member": each["member"]}
        yield "member_elements_total", "counter", own, each["elements"]
        yield "member_skipped_total", "counter", own, each["skipped"]
        yield "member_behind", "gauge", own, each["behind"]
        yield "member_share_ratio", "gauge", own, each["share"]
