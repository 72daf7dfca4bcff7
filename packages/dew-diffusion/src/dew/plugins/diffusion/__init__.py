"""What dew-diffusion adds."""

from __future__ import annotations

from collections.abc import Iterator

from dew.plugins import Component, hookimpl

DEW_CONTRACT = 1
CONFIG = "dew.objectives.diffusion.config:DiffusionRunConfig"
MODELS = {
    "simple_dit": ("dit.model:SimpleDiT", "Diffusion transformer over patches, with adaptive norms."),
    "unet": ("unet.model:UNet", "Convolutional denoiser with skip connections."),
}
METRICS = {
    "psnr": ("PSNR", "Peak signal-to-noise ratio in decibels, images beside their references."),
    "ssim": ("SSIM", "Structural similarity of images and their references."),
}

PRESETS = {
    "edm": ("EDM", "Variance exploding, preconditioned, log-normal training noise."),
    "karras": ("Karras", "EDM with training noise spread as the sampling grid spreads it."),
    "cosine": ("Cosine", "The cosine schedule in continuous time."),
    "linear": ("Linear", "A table of betas, as DDPM and Stable Diffusion train with."),
    "flow": ("Flow", "Rectified flow: a straight line from the data to the noise."),
}
SAMPLERS = {
    "ddpm": ("posterior:DDPM", "Ancestral, by the posterior given the estimate of x0."),
    "ddim": ("implicit:DDIM", "Deterministic at eta 0, ancestral at eta 1."),
    "euler": ("first_order:Euler", "One slope a step on the probability-flow ODE."),
    "euler_ancestral": ("first_order:EulerAncestral", "Euler's step with fresh noise."),
    "heun": ("trapezoid:Heun", "Second order, two evaluations a step."),
    "dpmpp_2m": ("multistep:DPMSolverPP", "Second order with one evaluation a step, from the last two."),
}


@hookimpl
def dew_components() -> Iterator[Component]:
    """The parts of dew-diffusion."""
    yield Component(
        "recipe",
        "diffusion",
        "dew.objectives.diffusion.recipe:train",
        "Train a diffusion model on images: scikit-learn's digits, MNIST, or a folder of yours.",
        config=CONFIG,
    )
    yield Component(
        "objective",
        "diffusion",
        "dew.objectives.diffusion.objective:DiffusionObjective",
        "Predict what noise hid.",
        config=CONFIG,
    )
    for name, (reference, summary) in MODELS.items():
        yield Component("model", name, f"dew.nn.backbones.{reference}", summary)
    yield Component(
        "encoder", "labels", "dew.inputs.encoders.labels:LabelEncoder", "Class labels as unit vectors."
    )
    for name, (attribute, summary) in METRICS.items():
        yield Component("metric", name, f"dew.eval.images:{attribute}", summary)
    for name, (attribute, summary) in PRESETS.items():
        yield Component("preset", name, f"dew.diffusion.presets:{attribute}", summary)
    for name, (reference, summary) in SAMPLERS.items():
        yield Component("sampler", name, f"dew.sampling.solvers.{reference}", summary)
    yield Component(
        "task",
        "diffusion",
        "dew.inference.images.task:TextToImage",
        "Draw images and write them as PNG files.",
        config="dew.inference.images.options:ImageOptions",
    )
