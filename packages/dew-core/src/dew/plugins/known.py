"""Names Dew knows without having them installed, so that an error can say which package ships one."""

from __future__ import annotations

from importlib import metadata

DISTRIBUTIONS = ("dew-core", "dew-lm", "dew-diffusion", "dew-jepa", "dew-rl", "dew-inference")
"""Dew's own distributions; their plugins load first, in this order."""

SHIPPED_BY: dict[tuple[str, str], str] = {
    ("recipe", "lm"): "dew-lm",
    ("recipe", "diffusion"): "dew-diffusion",
    ("recipe", "jepa"): "dew-jepa",
    ("recipe", "grpo"): "dew-rl",
    ("recipe", "dpo"): "dew-rl",
    ("objective", "lm"): "dew-lm",
    ("objective", "diffusion"): "dew-diffusion",
    ("objective", "jepa"): "dew-jepa",
    ("objective", "grpo"): "dew-rl",
    ("objective", "dpo"): "dew-rl",
    ("objective", "ppo"): "dew-rl",
    ("model", "causal_transformer"): "dew-lm",
    ("model", "simple_dit"): "dew-diffusion",
    ("model", "unet"): "dew-diffusion",
    ("encoder", "labels"): "dew-diffusion",
    ("dataset", "text"): "dew-lm",
    ("dataset", "token_windows"): "dew-lm",
    ("dataset", "packed_tokens"): "dew-lm",
    ("dataset", "chat_messages"): "dew-lm",
    ("dataset", "preference_pairs"): "dew-lm",
    ("dataset", "prompts"): "dew-lm",
    ("dataset", "last_digit"): "dew-rl",
    ("dataset", "sum_pairs"): "dew-rl",
    ("metric", "perplexity"): "dew-lm",
    ("metric", "reward"): "dew-rl",
    ("metric", "preference_accuracy"): "dew-rl",
    ("metric", "fid"): "dew-diffusion",
    ("metric", "clip_score"): "dew-diffusion",
    ("metric", "clip"): "dew-diffusion",
    ("metric", "psnr"): "dew-diffusion",
    ("metric", "ssim"): "dew-diffusion",
    ("tokenizer", "byte"): "dew-lm",
    ("tokenizer", "hf"): "dew-lm",
    ("task", "lm"): "dew-lm",
    ("task", "jepa"): "dew-jepa",
    ("model", "vit_jepa"): "dew-jepa",
    ("model", "vit_jepa_predictor"): "dew-jepa",
    ("metric", "linear_probe"): "dew-jepa",
    ("metric", "knn_probe"): "dew-jepa",
    ("metric", "feature_std"): "dew-jepa",
    ("metric", "feature_covariance"): "dew-jepa",
    ("metric", "rankme"): "dew-jepa",
    ("task", "grpo"): "dew-rl",
    ("task", "dpo"): "dew-rl",
    ("preset", "edm"): "dew-diffusion",
    ("preset", "karras"): "dew-diffusion",
    ("preset", "cosine"): "dew-diffusion",
    ("preset", "linear"): "dew-diffusion",
    ("preset", "flow"): "dew-diffusion",
    ("sampler", "ddpm"): "dew-diffusion",
    ("sampler", "ddim"): "dew-diffusion",
    ("sampler", "euler"): "dew-diffusion",
    ("sampler", "euler_ancestral"): "dew-diffusion",
    ("sampler", "heun"): "dew-diffusion",
    ("sampler", "dpmpp_2m"): "dew-diffusion",
    ("task", "diffusion"): "dew-diffusion",
    ("command", "generate"): "dew-inference",
    ("command", "tokenize"): "dew-lm",
    ("command", "export"): "dew-inference",
    ("writer", "causal_transformer"): "dew-lm",
    ("adapter_writer", "causal_transformer"): "dew-lm",
    ("reader", "llama"): "dew-lm",
    ("reader", "arcee"): "dew-lm",
    ("reader", "mistral"): "dew-lm",
    ("reader", "ministral"): "dew-lm",
    ("reader", "qwen3"): "dew-lm",
}
"""(kind, name) -> the distribution to install."""


def obtain(distribution: str) -> str:
    """How to get at what `distribution` ships: install it, or see why its plugin is not loaded."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return f"pip install {distribution}"
    return "that is installed, but its plugin is not loaded: dew plugins says why"
