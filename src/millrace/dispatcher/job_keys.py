"""Keys of jobs, consumers and cache servers, made from the service's secret as they are told."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from millrace.protocol.cache_server_messages import CacheServerWelcome
from millrace.protocol.data_messages import Open
from millrace.protocol.messages import JobJoined, OpenJob
from millrace.wire.data.data_keys import consumer_key, job_key, source_key, source_secret

M = TypeVar("M")


class JobKeys:
    """Keys of one service.

    Args:
        secret: that all of them follow from; the dispatcher alone knows it.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def enclose(self, message: M, client: str = "") -> M:
        """Put the key into a message that is to bring one to a worker, a cache server, or the consumer ``client``."""
        match message:
            case OpenJob():
                key = job_key(self._secret, message.job, message.generation)
                at_caches = source_key(source_secret(self._secret), message.spec.tenant.encode())
                return msgspec.structs.replace(message, key=key, source_key=at_caches)
            case CacheServerWelcome():
                return msgspec.structs.replace(message, key=source_secret(self._secret))
            case JobJoined():
                opening = Open(message.job, message.consumer, client, message.generation)
                of_job = job_key(self._secret, message.job, message.generation)
                return msgspec.structs.replace(message, key=consumer_key(of_job, opening))
        return message
