"""How the gateway process and an engine process talk: framed messages over one stream socket, and an in-process twin.

Owns framing, the codec and both ends of the channel. May import types only. Does not know what a request means.
"""

from twinpath.ipc.channel import Channel, ChannelClosed, SocketChannel
from twinpath.ipc.codec import Codec, FrameError
from twinpath.ipc.link import Link, LinkHandler, connect_link
from twinpath.ipc.local import local_pair

__all__ = [
    "Channel",
    "ChannelClosed",
    "Codec",
    "FrameError",
    "Link",
    "LinkHandler",
    "SocketChannel",
    "connect_link",
    "local_pair",
]
