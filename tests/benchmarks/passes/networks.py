"""Train steps written with other people's libraries, for which no pass was made.

Networks come from Hugging Face's Flax models, Haiku, Equinox, Flax NNX and Flax Linen, as these
libraries or their documentation build them; optimizers are Optax's. Weights are random, data too.
Sizes are such that a step takes 20 to 200 ms on two cores.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import optax
import transformers
from flax import nnx

from tests.benchmarks.contenders import Program


def _trained(
    loss_of: Callable[..., Any], params: Any, batch: Any, tx: optax.GradientTransformation
) -> Program:
    """A train step of a loss that takes parameters and a batch."""

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, opt = state
        loss, grads = jax.value_and_grad(loss_of)(params, batch)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), loss

    return Program(step, (params, tx.init(params)), batch)


def _tokens(rows: int, length: int, words: int) -> jax.Array:
    return jax.random.randint(jax.random.key(1), (rows, length), 1, words)


def _normal(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(2), shape)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _noisy(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(1.0), tx)


def bert() -> Program:
    """`transformers`' BERT for masked language modelling, with dropout, AdamW and clipping."""
    config = transformers.BertConfig(
        vocab_size=2000,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=64,
    )
    model = transformers.FlaxBertForMaskedLM(config, input_shape=(1, 64), seed=0)
    key = jax.random.key(3)

    def loss_of(params: Any, tokens: jax.Array) -> jax.Array:
        masked = jnp.where(tokens % 7 == 0, 0, tokens)
        logits = model(masked, params=params, dropout_rng=key, train=True).logits
        return _cross_entropy(logits, tokens)

    return _trained(loss_of, model.params, _tokens(8, 64, 2000), _noisy(optax.adamw(1e-3)))


def gpt2() -> Program:
    """`transformers`' GPT-2, next words, with Lion."""
    config = transformers.GPT2Config(
        vocab_size=2000, n_positions=64, n_embd=128, n_layer=3, n_head=4
    )
    model = transformers.FlaxGPT2LMHeadModel(config, input_shape=(1, 64), seed=0)

    def loss_of(params: Any, tokens: jax.Array) -> jax.Array:
        logits = model(tokens, params=params, train=False).logits
        return _cross_entropy(logits[:, :-1], tokens[:, 1:])

    return _trained(loss_of, model.params, _tokens(8, 64, 2000), optax.lion(1e-4))


def resnet() -> Program:
    """Haiku's ResNet with batch normalization, on small images, SGD with momentum."""

    def forward(images: jax.Array) -> jax.Array:
        net = hk.nets.ResNet(
            blocks_per_group=(1, 1, 1, 1),
            num_classes=10,
            bottleneck=False,
            channels_per_group=(16, 32, 64, 128),
        )
        return net(images, is_training=True)

    net = hk.transform_with_state(forward)
    images = _normal(16, 48, 48, 3)
    params, averages = net.init(jax.random.key(0), images)
    tx = optax.sgd(0.01, momentum=0.9, nesterov=True)

    def loss_of(params: Any, averages: Any, batch: Any) -> Any:
        logits, averages = net.apply(params, averages, None, batch[0])
        return _cross_entropy(logits, batch[1]), averages

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, averages, opt = state
        (loss, averages), grads = jax.value_and_grad(loss_of, has_aux=True)(params, averages, batch)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), averages, opt), loss

    labels = jnp.arange(16) % 10
    return Program(step, (params, averages, tx.init(params)), (images, labels))


def lstm() -> Program:
    """Haiku's deep LSTM over characters, unrolled by `hk.dynamic_unroll`, Adam and clipping."""

    def forward(tokens: jax.Array) -> jax.Array:
        x = hk.Embed(64, 96)(tokens)
        core = hk.DeepRNN([hk.LSTM(192), jax.nn.relu, hk.LSTM(192)])
        states, _ = hk.dynamic_unroll(core, x, core.initial_state(tokens.shape[1]))
        return hk.BatchApply(hk.nets.MLP([128, 64]))(states)

    net = hk.without_apply_rng(hk.transform(forward))
    tokens = _tokens(24, 32, 64)

    def loss_of(params: Any, tokens: jax.Array) -> jax.Array:
        return _cross_entropy(net.apply(params, tokens)[:-1], tokens[1:])

    params = net.init(jax.random.key(0), tokens)
    return _trained(loss_of, params, tokens, _noisy(optax.adam(1e-3)))


def haiku_transformer() -> Program:
    """A Transformer of Haiku's attention, its layers stacked by `hk.layer_stack`, AdaBelief.

    Its step is skipped where a gradient is not finite (`optax.apply_if_finite`).
    """

    def layer(x: jax.Array) -> jax.Array:
        def norm(x: jax.Array) -> jax.Array:
            return hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)

        initializer = hk.initializers.VarianceScaling(0.5)
        mask = jnp.tril(jnp.ones((1, 1, x.shape[1], x.shape[1])))
        y = norm(x)
        x = x + hk.MultiHeadAttention(4, 32, model_size=128, w_init=initializer)(y, y, y, mask)
        return x + hk.nets.MLP([512, 128], activation=jax.nn.gelu)(norm(x))

    def forward(tokens: jax.Array) -> jax.Array:
        x = hk.Embed(500, 128)(tokens)
        return hk.Linear(500)(hk.layer_stack(4)(layer)(x))

    net = hk.without_apply_rng(hk.transform(forward))
    tokens = _tokens(8, 64, 500)

    def loss_of(params: Any, tokens: jax.Array) -> jax.Array:
        return _cross_entropy(net.apply(params, tokens)[:, :-1], tokens[:, 1:])

    tx = optax.apply_if_finite(optax.adabelief(1e-3), max_consecutive_errors=5)
    return _trained(loss_of, net.init(jax.random.key(0), tokens), tokens, tx)


class _MixerBlock(eqx.Module):
    """As in Equinox's MLP-Mixer example."""

    patch_mixer: eqx.nn.MLP
    hidden_mixer: eqx.nn.MLP
    first_norm: eqx.nn.LayerNorm
    second_norm: eqx.nn.LayerNorm

    def __init__(self, patches: int, hidden: int, key: jax.Array):
        first, second = jax.random.split(key)
        self.patch_mixer = eqx.nn.MLP(patches, patches, 2 * patches, depth=1, key=first)
        self.hidden_mixer = eqx.nn.MLP(hidden, hidden, 2 * hidden, depth=1, key=second)
        self.first_norm = eqx.nn.LayerNorm((hidden, patches))
        self.second_norm = eqx.nn.LayerNorm((patches, hidden))

    def __call__(self, y: jax.Array) -> jax.Array:
        y = y + jax.vmap(self.patch_mixer)(self.first_norm(y))
        y = y.T
        y = y + jax.vmap(self.hidden_mixer)(self.second_norm(y))
        return y.T


def mixer() -> Program:
    """An MLP-Mixer in Equinox, RMSProp."""
    keys = jax.random.split(jax.random.key(0), 6)
    blocks = [_MixerBlock(64, 64, key) for key in keys[:4]]
    model = (
        eqx.nn.Conv2d(3, 64, 4, stride=4, key=keys[4]),
        blocks,
        eqx.nn.Linear(64, 10, key=keys[5]),
    )
    params, rest = eqx.partition(model, eqx.is_inexact_array)

    def loss_of(params: Any, batch: Any) -> jax.Array:
        patch, blocks, last = eqx.combine(params, rest)

        def one(image: jax.Array) -> jax.Array:
            y = patch(image).reshape(64, -1)
            for block in blocks:
                y = block(y)
            return last(y.mean(1))

        return _cross_entropy(jax.vmap(one)(batch[0]), batch[1])

    batch = _normal(16, 3, 32, 32), jnp.arange(16) % 10
    return _trained(loss_of, params, batch, optax.rmsprop(1e-3))


def gru() -> Program:
    """Equinox's GRU cell under `jax.lax.scan`, one sequence at a time under `vmap`, AdamW."""
    keys = jax.random.split(jax.random.key(0))
    model = eqx.nn.GRUCell(64, 256, key=keys[0]), eqx.nn.Linear(256, 1, key=keys[1])
    params, rest = eqx.partition(model, eqx.is_inexact_array)

    def loss_of(params: Any, batch: Any) -> jax.Array:
        cell, last = eqx.combine(params, rest)

        def one(xs: jax.Array) -> jax.Array:
            hidden, _ = jax.lax.scan(
                lambda h, x: (cell(x, h), None), jnp.zeros(cell.hidden_size), xs
            )
            return last(hidden)[0]

        logits = jax.vmap(one)(batch[0])
        return optax.sigmoid_binary_cross_entropy(logits, batch[1]).mean()

    batch = _normal(64, 24, 64), jnp.arange(64) % 2.0
    return _trained(loss_of, params, batch, optax.adamw(1e-3))


class _EncoderBlock(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs):
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.first_norm = nnx.LayerNorm(width, rngs=rngs)
        self.second_norm = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.first_norm(x))
        return x + self.down(nnx.gelu(self.up(self.second_norm(x))))


class _Encoder(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(500, 128, rngs=rngs)
        self.blocks = nnx.List([_EncoderBlock(128, rngs) for _ in range(3)])
        self.last = nnx.Linear(128, 500, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def nnx_transformer() -> Program:
    """A Transformer encoder of Flax NNX's layers, four microbatches in a scan, Adam."""
    graph, params = nnx.split(_Encoder(nnx.Rngs(0)))

    def loss_of(params: Any, tokens: jax.Array) -> jax.Array:
        return _cross_entropy(nnx.merge(graph, params)(tokens), tokens)

    tx = optax.adam(1e-3)

    def step(state: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
        params, opt = state

        def add(total: Any, part: jax.Array) -> tuple[Any, jax.Array]:
            loss, grads = jax.value_and_grad(loss_of)(params, part)
            return jax.tree.map(jnp.add, total, grads), loss

        zeros = jax.tree.map(jnp.zeros_like, params)
        grads, losses = jax.lax.scan(add, zeros, batch)
        updates, opt = tx.update(jax.tree.map(lambda g: g / 4, grads), opt, params)
        return (optax.apply_updates(params, updates), opt), losses.mean()

    return Program(step, (params, tx.init(params)), _tokens(16, 48, 500).reshape(4, 4, 48))


class _UNet(nn.Module):
    """Convolutions with group normalization, two halvings, skip connections."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        skips = []
        for features in (16, 32):
            x = nn.swish(nn.GroupNorm(8)(nn.Conv(features, (3, 3))(x)))
            skips.append(x)
            x = nn.Conv(features, (3, 3), strides=2)(x)
        x = nn.swish(nn.GroupNorm(8)(nn.Conv(64, (3, 3))(x)))
        for features in (32, 16):
            x = nn.ConvTranspose(features, (2, 2), strides=(2, 2))(x)
            x = jnp.concatenate([x, skips.pop()], -1)
            x = nn.swish(nn.GroupNorm(8)(nn.Conv(features, (3, 3))(x)))
        return nn.Conv(3, (1, 1))(x)


def unet() -> Program:
    """A U-Net of Flax Linen's layers that removes noise, Lamb, with an average of its weights."""
    net = _UNet()
    images = _normal(8, 32, 32, 3)
    params = net.init(jax.random.key(0), images)

    def loss_of(params: Any, images: jax.Array) -> jax.Array:
        noise = jax.random.normal(jax.random.key(5), images.shape)
        return jnp.mean((net.apply(params, images + noise) - noise) ** 2)

    trained = _trained(loss_of, params, images, optax.lamb(1e-3))

    def step(state: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
        state, average = state
        state, loss = trained.step(state, batch)
        return (state, optax.incremental_update(state[0], average, 0.01)), loss

    average = jax.tree.map(jnp.copy, params)
    return Program(step, (trained.state, average), images)


class _ScannedBlock(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x))
        y = nn.Dense(96)(nn.gelu(nn.Dense(384)(nn.LayerNorm()(x))))
        return x + nn.Dropout(0.1, deterministic=False)(y), None


class _ViT(nn.Module):
    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.Conv(96, (4, 4), strides=4)(images)
        x = x.reshape(x.shape[0], -1, 96)
        x = x + self.param("positions", nn.initializers.normal(0.02), x.shape[1:])
        scanned = nn.scan(
            _ScannedBlock,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            length=4,
        )
        x, _ = scanned()(x, None)
        return nn.Dense(10)(nn.LayerNorm()(x).mean(1))


def vit() -> Program:
    """A ViT in Flax Linen, its layers under `nn.scan`, dropout, AdamW with a schedule."""
    net = _ViT()
    batch = _normal(16, 32, 32, 3), jnp.arange(16) % 10
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    params = net.init(keys, batch[0])

    def loss_of(params: Any, batch: Any) -> jax.Array:
        logits = net.apply(params, batch[0], rngs={"dropout": jax.random.key(1)})
        return _cross_entropy(logits, batch[1])

    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 1000)
    return _trained(loss_of, params, batch, optax.adamw(schedule))


class _Tagger(nn.Module):
    """Names a class for each token of a text, reading it both ways."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(500, 96)(tokens)
        for _ in range(2):
            ways = nn.RNN(nn.OptimizedLSTMCell(128)), nn.RNN(nn.OptimizedLSTMCell(128))
            x = nn.Bidirectional(*ways)(x)
        return nn.Dense(10)(x)


def flax_lstm() -> Program:
    """A tagger of Flax Linen's bidirectional `OptimizedLSTMCell`s, momentum."""
    net = _Tagger()
    batch = _tokens(16, 32, 500), _tokens(16, 32, 10)
    params = net.init(jax.random.key(0), batch[0])

    def loss_of(params: Any, batch: Any) -> jax.Array:
        return _cross_entropy(net.apply(params, batch[0]), batch[1])

    return _trained(loss_of, params, batch, optax.sgd(1e-2, momentum=0.9))


class _Characters(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(64, 96, rngs=rngs)
        self.layers = nnx.List(
            [nnx.RNN(nnx.GRUCell(n, 192, rngs=rngs), rngs=rngs) for n in (96, 192)]
        )
        self.last = nnx.Linear(192, 64, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, initial_carry=jnp.zeros((x.shape[0], 192)))
        return self.last(x)


def nnx_gru() -> Program:
    """A character model of Flax NNX's `GRUCell`s, Adam and clipping."""
    graph, params, rest = nnx.split(_Characters(nnx.Rngs(0)), nnx.Param, ...)

    def loss_of(params: Any, tokens: jax.Array) -> jax.Array:
        logits = nnx.merge(graph, params, rest)(tokens)
        return _cross_entropy(logits[:, :-1], tokens[:, 1:])

    return _trained(loss_of, params, _tokens(16, 32, 64), _noisy(optax.adam(1e-3)))


NETWORKS: dict[str, Callable[[], Program]] = {
    "bert": bert,
    "gpt2": gpt2,
    "resnet": resnet,
    "lstm": lstm,
    "haiku_transformer": haiku_transformer,
    "mixer": mixer,
    "gru": gru,
    "nnx_transformer": nnx_transformer,
    "unet": unet,
    "vit": vit,
    "flax_lstm": flax_lstm,
    "nnx_gru": nnx_gru,
}


@functools.cache
def network(name: str) -> Program:
    """A train step by name, one of `NETWORKS`."""
    return NETWORKS[name]()
