"""Turns a logged model into ONNX. This runs only in the sandbox: loading a model may run its author's code."""
