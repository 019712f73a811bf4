"""What turns a logged model into ONNX. Runs inside the sandbox alone: loading a model may run its author's code."""
