"""A link of some milliseconds on loopback: a proxy that holds the begin of each answer back.

python -m benchmarks.delay LISTEN TARGET MILLISECONDS [CERTIFICATE KEY]

With a certificate the link speaks TLS to its clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys


async def serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int, delay: float
) -> None:
    """Pass a connection on."""
    loop = asyncio.get_running_loop()
    from_server, to_server = await asyncio.open_connection("127.0.0.1", target)
    asked = loop.time()

    async def up() -> None:
        nonlocal asked
        while piece := await reader.read(1 << 16):
            asked = loop.time()
            to_server.write(piece)
            await to_server.drain()
        to_server.close()

    async def down() -> None:
        while piece := await from_server.read(1 << 18):
            await asyncio.sleep(max(asked + delay - loop.time(), 0))
            writer.write(piece)
            await writer.drain()
        writer.close()

    with contextlib.suppress(OSError):
        await asyncio.gather(up(), down())


async def main(listen: int, target: int, delay: float, *certificate: str) -> None:
    """Listen."""
    tls = None
    if certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*certificate)
    server = await asyncio.start_server(
        lambda reader, writer: serve(reader, writer, target, delay), "127.0.0.1", listen, ssl=tls
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1e3, *sys.argv[4:]))
