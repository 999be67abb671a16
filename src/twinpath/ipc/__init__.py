"""How the gateway process and an engine process talk: framed messages over one stream socket, and an in-process twin.

Owns framing, the codec and both ends of the channel. May import config and types only. Does not know what a request
means. The gateway's ends, `link` and `local`, are imported by name: the engine process has no use for asyncio.
"""

from twinpath.ipc.channel import Channel, ChannelClosed, SocketChannel
from twinpath.ipc.codec import Codec, FrameError

__all__ = ["Channel", "ChannelClosed", "Codec", "FrameError", "SocketChannel"]
