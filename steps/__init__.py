"""One verb per file, one public function: records in, a record out. A step never imports a step."""
