"""Megatron-LM's pretrain_gpt.py with the datasets of a cache: put it beside that file.

DISTCACHE_CACHE=/shared/c.h5 torchrun ... megatron_lm.py, with the options of pretrain_gpt.py.
"""

import os

from megatron.core.enums import ModelType
from megatron.training import pretrain
from pretrain_gpt import forward_step, model_provider

from distcache.megatron import provider

if __name__ == "__main__":
    pretrain(
        provider(os.environ["DISTCACHE_CACHE"]),
        model_provider,
        ModelType.encoder_or_decoder,
        forward_step,
    )
