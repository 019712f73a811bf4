"""Turns a logged model into ONNX. Runs only in the sandbox: loading a model may run its author's code."""
