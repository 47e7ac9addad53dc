"""Which addresses the task `http` may connect to: public ones, and the networks that the operator allows.

The check is on addresses, after the name was resolved, and the connection is made to an address that passed it: a name that answers
otherwise a moment later, or a host spelled 2130706433 or 0177.1, gains nothing. `ipaddress.is_global` alone is not enough: it says yes to
multicast and, in some versions, to addresses that carry a private IPv4 address within.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    Address = IPv4Address | IPv6Address
    Network = IPv4Network | IPv6Network

_NOT_PUBLIC_4: Final = tuple(map(IPv4Network, (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
    "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
    "168.63.129.16/32",  # looks public, and is the metadata service of a cloud
)))
_PUBLIC_6: Final = IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
_NAT64: Final = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL: Final = IPv6Network("64:ff9b:1::/48")
_COMPATIBLE: Final = IPv6Network("::/96")


def embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address leads to: mapped, compatible, 6to4, NAT64. None when it is no such form."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64 or address in _NAT64_LOCAL or (address in _COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def public(address: Address) -> bool:
    """Whether it is an address of the public internet, for sure."""
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in net for net in _NOT_PUBLIC_4)
    inner = embedded(address)
    if inner is not None:
        return public(inner) and address not in _NAT64_LOCAL and address not in _COMPATIBLE
    return address in _PUBLIC_6 and not any(address in net for net in _NOT_PUBLIC_6)


def permitted(text: str, allowed: Iterable[Network]) -> bool:
    """Whether an address, as `getaddrinfo` gives it, may be connected to."""
    address = ip_address(text.partition("%")[0])
    inner = embedded(address)
    forms = (address,) if inner is None else (address, inner)
    return public(address) or any(form.version == net.version and form in net for net in allowed for form in forms)
