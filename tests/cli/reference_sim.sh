#!/usr/bin/env bash
# A dense model, one with experts and one with a recurrent state against transformers' results, partly on a simulated device.
cd "$(dirname "$0")" || exit 1
REFERENCE_DEVICE=sim:plans/rtx3060-i7-11800h.json REFERENCE_MODELS="llama31 qwen3moe qwen35" exec bash reference.sh
