"""Delays between attempts at the password. They grow with every wrong one, for its address and for all together."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mgap.inspector.page_routes import Refused

LONGEST_WAIT = 30.0  # seconds; who would wait longer is refused
ALL_FREE, ALL_LONGEST = 20, 2.0  # attempts of all addresses without a delay, and seconds between them afterwards
ADDRESSES = 1024  # that are remembered
FORGOTTEN = 900.0  # seconds after which wrong passwords no longer count


@dataclass
class Attempts:
    """Those of one address, or all. They are taken for wrong until one is right."""

    free: int
    longest: float
    count: int = 0
    next_at: float = 0.0  # when the next may be tried

    def add(self, at: float) -> None:
        self.count = self.count + 1 if at < self.next_at + FORGOTTEN else 1
        excess = self.count - self.free
        self.next_at = at + (min(self.longest, 2.0 ** min(excess - 1, 60)) if excess > 0 else 0.0)


class PasswordAttempts:
    """Gives every attempt its turn: those of one address after 1, 2, 4, 8, 16, 30, 30, ... seconds."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._all = Attempts(ALL_FREE, ALL_LONGEST)
        self.known: OrderedDict[str, Attempts] = OrderedDict()  # by network

    async def wait_for_turn(self, address: str) -> None:
        """Sleep until this address may try a password; raises Refused if that takes too long."""
        key = _network(address)
        own = self.known.setdefault(key, Attempts(0, LONGEST_WAIT))
        self.known.move_to_end(key)
        while len(self.known) > ADDRESSES:
            self.known.popitem(last=False)
        await self._wait(own)
        await self._wait(self._all)  # only now, so that nobody waits for those who wait for their own turn

    async def _wait(self, attempts: Attempts) -> None:
        now = self._clock()
        turn = max(now, attempts.next_at)
        if turn - now > LONGEST_WAIT:
            seconds = str(math.ceil(turn - now))
            raise Refused(429, f"Too many passwords were tried: wait {seconds} seconds, then try again.", retry_after=seconds)
        attempts.add(turn)
        if turn > now:
            await self._sleep(turn - now)

    def was_right(self, address: str) -> None:
        """Forget the wrong ones of an address."""
        self.known.pop(_network(address), None)
        self._all.count = max(0, self._all.count - 1)


def _network(address: str) -> str:
    """What the addresses of one client have in common: of version 6, it may have all of a /64."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # a socket without one
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ip.packed[:8].hex())
