"""A TCP relay that holds everything back for a while, to stand for distance: `python -m benchmarks.relay PORT MS`.

Each direction is late by MS (a round trip by twice that), in order and without a limit on the rate. Prints the port it
listens on.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvloop


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Copy until the end, each piece `delay_s` after it came."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def send() -> None:
        while True:
            due, data = await queue.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                break
            writer.write(data)
        writer.close()

    sending = asyncio.ensure_future(send())
    try:
        while True:
            data = await reader.read(65536)
            queue.put_nowait((loop.time() + delay_s, data))
            if not data:
                return await sending
    except OSError:
        sending.cancel()
        writer.close()


async def serve(target_port: int, delay_s: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The handshake of the real connection would have cost a round trip, too.
        await asyncio.sleep(2 * delay_s)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target_port)
        for one in (writer, far_writer):
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(pump(reader, far_writer, delay_s), pump(far_reader, writer, delay_s))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2]) / 1e3))
