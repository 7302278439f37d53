"""The networks of the paper's evaluation, by name. See `base.Network` for what each can do."""

from __future__ import annotations

from collections.abc import Mapping

from examples.paper.networks import bert, bilstm, gpt, inception, resnet, spos, swin, unet
from examples.paper.networks.base import Network as Network
from examples.paper.networks.base import State as State
from examples.paper.networks.base import TrainStep as TrainStep

NETWORKS: Mapping[str, Network] = {
    network.name: network
    for network in (
        resnet.NETWORK,
        inception.NETWORK,
        unet.NETWORK,
        swin.NETWORK,
        bert.NETWORK,
        gpt.GPT3,
        gpt.GPT2,
        bilstm.NETWORK,
        spos.NETWORK,
    )
}
