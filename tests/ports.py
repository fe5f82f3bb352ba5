"""Free ports of this machine, for servers that must know each other's beforehand."""

import socket


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()


def free_port() -> int:
    return free_ports(1)[0]
