"""`pipelines/pipeline_messages.py`, as it is called in bundles."""

from shiplift.runtime.guest.pipelines.pipeline_messages import INLINE_BYTES as INLINE_BYTES
from shiplift.runtime.guest.pipelines.pipeline_messages import MOST_BYTES as MOST_BYTES
from shiplift.runtime.guest.pipelines.pipeline_messages import PREFIX_BYTES as PREFIX_BYTES
from shiplift.runtime.guest.pipelines.pipeline_messages import SHARED_MEMORY as SHARED_MEMORY
from shiplift.runtime.guest.pipelines.pipeline_messages import Broken as Broken
from shiplift.runtime.guest.pipelines.pipeline_messages import Buffer as Buffer
from shiplift.runtime.guest.pipelines.pipeline_messages import datatype as datatype
from shiplift.runtime.guest.pipelines.pipeline_messages import length as length
from shiplift.runtime.guest.pipelines.pipeline_messages import packed as packed
from shiplift.runtime.guest.pipelines.pipeline_messages import read_shared as read_shared
from shiplift.runtime.guest.pipelines.pipeline_messages import remove as remove
from shiplift.runtime.guest.pipelines.pipeline_messages import send as send
from shiplift.runtime.guest.pipelines.pipeline_messages import size as size
from shiplift.runtime.guest.pipelines.pipeline_messages import unpacked as unpacked
from shiplift.runtime.guest.pipelines.pipeline_messages import write_shared as write_shared
