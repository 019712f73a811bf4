"""One of the engines in `generation/`, as it is called in packages: all have what OpenVINO's has."""

from shiplift.runtime.guest.generation.openvino_engine import GenerationEngine as GenerationEngine
