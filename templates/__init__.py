"""What is rendered or written for users: the HTML report, the commented spec, the example training script."""
