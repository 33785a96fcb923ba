# What muster uses of google-re2.

class error(Exception): ...

class Options:
    max_mem: int
    log_errors: bool
    never_capture: bool

class _Regexp:
    @property
    def programsize(self) -> int: ...
    def fullmatch(self, text: str) -> object | None: ...

def compile(pattern: str, options: Options | None = None) -> _Regexp: ...
