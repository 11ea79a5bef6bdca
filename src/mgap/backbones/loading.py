"""Load a backbone by hub id or folder, with errors that say what to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, GenerationConfig, ProcessorMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING
from transformers.utils import find_adapter_config_file, is_peft_available, is_torchvision_available

from mgap.backbones.base import Backbone, backbone_class
from mgap.backbones.checkpoint_faults import check_counts, check_end_tokens, refuse_own_loop, tokenizer_faults
from mgap.backbones.template_rendering import check_stated
from mgap.errors import MgapError, ModelError, SettingError, did_you_mean, one_line
from mgap.io.hub_connection import cached_models, hub_is_away, only_the_cache
from mgap.io.regular_files import require_regular_files
from mgap.registry import POCKET_MODELS


def load_backbone(
    name: str,
    *,
    called: str | None = None,
    device: str | None = None,
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    attention: str | None = None,
    trust_remote_code: bool = False,
    device_map: Any = None,
    template: str | None = None,
) -> Backbone:
    """Load configuration (cheap, catches most mistakes), then processor, then weights. `called`: the name in records."""
    if template is not None:
        check_stated(template)
    if device is not None and device_map is not None:
        raise SettingError("device and device_map both say where the weights go: give one of them")
    target, dtype = check_device(device), _check_dtype(dtype)
    cached = only_the_cache(name)
    where: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code, **cached}
    config = load_config(name, **where)
    if not is_peft_available() and find_adapter_config_file(name, revision=revision, **cached) is not None:
        raise ModelError(f"{name} has an adapter, which is read by peft alone, and would be left out: pip install peft")
    if device_map is None and getattr(config, "quantization_config", None) is not None:
        device_map = {"": target}  # quantised weights are placed while loading and cannot move afterwards
    placement = {} if device_map is None else {"device_map": device_map}
    try:
        processor = load_processor(name, config, **where)
        _settle_template(config, processor, called or name, template)
        model, report = backbone_class(config).model_class.from_pretrained(
            name, dtype=dtype, attn_implementation=attention, output_loading_info=True, **placement, **where
        )
    except MgapError:
        raise
    except Exception as error:  # a damaged file makes transformers stumble in any way
        raise ModelError(f"{name}: the checkpoint cannot be loaded ({_said(error)})") from error
    if missing := sorted(report["missing_keys"]):
        raise ModelError(f"{name}: {len(missing)} weights are missing, such as {missing[0]}; fetch the checkpoint again")
    check_end_tokens(model.generation_config, name)
    if device_map is None:
        model = model.to(target)
    return _joined(model.eval(), processor, name, called)


def _joined(model: nn.Module, processor: Any, name: str, called: str | None) -> Backbone:
    try:
        return backbone_class(model.config)(model, processor, name=called or name)
    except MgapError:
        raise
    except Exception as error:  # the processor's settings are not those of the model's
        raise ModelError(f"{name}: its processor does not go with its model ({_said(error)})") from error


def _settle_template(config: Any, processor: Any, name: str, template: str | None) -> None:
    """State the template, or refuse a model that has none, while its weights are not read yet."""
    backbone = _joined(Weightless(config, None), processor, name, name)
    if template is None:
        backbone.template  # noqa: B018
    else:
        backbone.state_template(template)


def _said(error: Exception) -> str:
    return one_line(error) or type(error).__name__


class Weightless(nn.Module):
    """Stands in for a model whose weights are elsewhere; enough to render, tokenise and read answers."""

    def __init__(self, config: Any, generation_config: Any) -> None:
        super().__init__()
        self.config, self.generation_config = config, generation_config


def load_weightless(name: str, *, called: str | None = None, template: str | None = None, **where: Any) -> Backbone:
    """A backbone without weights: configuration and processor only. `where`: revision and trust_remote_code."""
    where |= only_the_cache(name)
    config = load_config(name, **where)
    try:
        processor = load_processor(name, config, **where)
    except Exception as error:
        raise ModelError(f"{name}: its processor cannot be loaded ({_said(error)})") from error
    try:
        generation = GenerationConfig.from_pretrained(name, **where)
    except OSError:  # without a file, transformers uses the model's configuration too
        generation = GenerationConfig.from_model_config(config)
    except Exception as error:
        raise ModelError(f"{name}: its generation_config.json cannot be read ({_said(error)})") from error
    check_end_tokens(generation, name)
    backbone = _joined(Weightless(config, generation), processor, name, called)
    if template is not None:
        backbone.state_template(template)
    return backbone


def load_config(name: str, **where: Any) -> Any:
    """A multimodal model's configuration; `where`: revision and trust_remote_code."""
    is_folder = os.path.isdir(name)  # Path.is_dir raises on a name that is too long
    if is_folder and not os.path.isfile(Path(name) / "config.json"):
        raise ModelError(f"{name}: a folder without config.json; name the folder that save_pretrained wrote")
    if is_folder:
        require_regular_files(Path(name))
    elif "local_files_only" not in where:
        where |= only_the_cache(name)
    try:
        config = AutoConfig.from_pretrained(name, **where)
        keys = config.to_dict()
    except Exception as error:  # a damaged file makes transformers stumble in any way
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"{name} ships its own Python code: read it, then pass trust_remote_code=True if you trust it"
            ) from error
        if is_folder:
            raise ModelError(f"{name}: its config.json cannot be read ({_said(error)})") from error
        raise _no_model(name, error) from error
    check_counts(keys, name)
    refuse_own_loop(config.model_type)
    if any(getattr(part, "is_encoder_decoder", False) for part in (config, getattr(config, "text_config", None))):
        raise ModelError(
            f"{name}: its language model is an encoder, which reads the prompt, and a decoder, which writes the answer; "
            "methods and priors here are of one decoder that reads both: choose a checkpoint with such a language model"
        )
    if type(config) not in AutoModelForImageTextToText._model_mapping and "auto_map" not in keys:
        raise ModelError(f"{name} is a {config.model_type} model, which reads no pictures: name an image-text model")
    return config


def _no_model(name: str, error: Exception) -> ModelError:
    """The error for a name that is no folder, and that the hub or its cache did not give."""
    hint = did_you_mean(name, [*POCKET_MODELS, *cached_models()])
    if away := hub_is_away():
        return ModelError(
            f"no model {name!r}: it is no folder here and not in the cache, and the hub cannot be reached ({away}): check the "
            f"spelling, connect to the network, or name a folder or an embedded model such as {next(iter(POCKET_MODELS))}{hint}"
        )
    return ModelError(
        f"no model {name!r}: it is no folder here, and it could not be fetched from the hub; check the spelling, the network, "
        f"and that you are logged in if it is private ({one_line(error, 160)}){hint}"
    )


def check_device(device: str | None) -> torch.device:
    """The device for the weights, by default a GPU if there is one; refuses a missing device."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise SettingError(f"unknown device {device!r}: choose cpu, cuda or cuda:N") from None
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise SettingError(f"device {device!r} was asked for, but torch sees {torch.cuda.device_count()} GPUs here: use cpu")
    return chosen


def _check_dtype(dtype: str | torch.dtype) -> str | torch.dtype:
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    chosen = getattr(torch, dtype, None)
    if not isinstance(chosen, torch.dtype):
        raise SettingError(f"unknown dtype {dtype!r}: choose auto, float32, bfloat16 or float16")
    return chosen


def load_processor(name: str, config: Any, **where: Any) -> Any:
    """The checkpoint's processor without its video part; without torchvision, on transformers' PIL image processors."""
    class_name = backbone_class(config).processor_class
    with tokenizer_faults(name):
        if class_name is None and type(config) not in PROCESSOR_MAPPING:
            return AutoProcessor.from_pretrained(name, **where)  # a model with its own code
        processor_class = PROCESSOR_MAPPING[type(config)] if class_name is None else getattr(transformers, class_name)
        backend = {} if is_torchvision_available() else {"backend": "pil"}
        return images_only(processor_class).from_pretrained(name, **backend, **where)


def images_only(processor_class: type[ProcessorMixin]) -> type[ProcessorMixin]:
    """A subclass of the processor without its video part, which transformers cannot build without torchvision."""

    def get_attributes(_: type[ProcessorMixin]) -> list[str]:
        return [part for part in processor_class.get_attributes() if part != "video_processor"]

    def load_tokenizer(_: type[ProcessorMixin], /, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("backend", None)  # meant for the image processor
        return processor_class._load_tokenizer_from_pretrained(*args, **kwargs)

    def reduce(self: ProcessorMixin) -> tuple[Any, ...]:
        return _revive, (processor_class,), self.__dict__  # another process cannot import this class by name

    parts: dict[str, Any] = {
        "get_attributes": classmethod(get_attributes),
        "_load_tokenizer_from_pretrained": classmethod(load_tokenizer),
        "__reduce__": reduce,
    }
    return type(processor_class.__name__, (processor_class,), parts)


def _revive(processor_class: type[ProcessorMixin]) -> ProcessorMixin:
    """An empty processor of `images_only`, for unpickling and copying."""
    processor: ProcessorMixin = object.__new__(images_only(processor_class))
    return processor
