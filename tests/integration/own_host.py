"""An address of loopback that no other process uses, so that a port which is free for a moment stays free."""

import ipaddress
import os

OWN_HOST = str(ipaddress.ip_address("127.64.0.0") + os.getpid())
"""Process ids have 22 bits."""
