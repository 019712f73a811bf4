"""`python/python_model.py`, as it is called in packages."""

from shiplift.runtime.guest.python.python_model import Stopped as Stopped
from shiplift.runtime.guest.python.python_model import TritonPythonModel as TritonPythonModel
from shiplift.runtime.guest.python.python_model import error_of as error_of
