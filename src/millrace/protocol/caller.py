"""Callers: who has begun a session or a call, and what they may do. Pure: found out where it begins, and carried on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

Scope = Literal["none", "own", "tenant", "all"]
"""Jobs that a right is about: none, those that the caller has begun, those of the caller's tenant, or everybody's."""
SCOPES: tuple[Scope, ...] = get_args(Scope)

UNSAID_TENANT = "default"
"""Tenant of a job that says none."""


class Rights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rights of a caller.

    Attributes:
        run: begin jobs, which sends functions to workers.
        join: jobs that the caller may be a consumer of.
        control: jobs that the caller may begin anew, from a state or after a failure, whoever reads them.
        status: jobs that are shown to the caller.
        remove: whose blocks the caller may delete, by the tenants that have kept them.
        read: tenants whose blocks the caller's jobs may read, beside those that its own tenant trusts.
        work: be a worker, which is sent everybody's functions.
        admin: all of these, for whatever tenant.
    """

    run: bool = True
    join: Scope = "tenant"
    control: Scope = "own"
    status: Scope = "tenant"
    remove: Literal["none", "tenant", "all"] = "none"
    read: tuple[str, ...] = ()
    work: bool = False
    admin: bool = False


class Caller(msgspec.Struct, frozen=True):
    """Caller of the service.

    Attributes:
        name: of the person or machine, as the file of tokens has it.
        tenant: whose jobs the caller's are; empty: whatever they say.
        rights: what the caller may do.
    """

    name: str
    tenant: str = ""
    rights: Rights = Rights()

    @property
    def admin(self) -> bool:
        """Whether nothing is refused."""
        return self.rights.admin

    @property
    def works(self) -> bool:
        """Whether the caller may be a worker."""
        return self.rights.work or self.admin

    @property
    def runs(self) -> bool:
        """Whether the caller may begin jobs."""
        return self.rights.run or self.admin

    def covers(self, scope: Scope, owner: str, tenant: str) -> bool:
        """Whether a right with this scope is about a job; one without an owner is an administrator's alone."""
        if self.admin:
            return True
        if not owner or scope == "none":
            return False
        return scope == "all" or (tenant == self.tenant and (scope == "tenant" or owner == self.name))

    def removes(self, writer: str) -> bool:
        """Whether the caller may delete what jobs of a tenant have kept."""
        return self.admin or self.rights.remove == "all" or (self.rights.remove == "tenant" and writer == self.tenant)

    def reads(self, trusted: Iterable[str]) -> list[str]:
        """List tenants whose blocks the caller's jobs may read: those ``trusted``, then what it may besides."""
        return list(dict.fromkeys([*trusted, *self.rights.read]))


ADMINISTRATOR = Caller("administrator", rights=Rights(admin=True))
"""Whoever has the one token of a service, or the user's own on loopback."""
