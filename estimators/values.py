"""``dataclass``, ``field``, ``fields``, ``replace`` and ``NamedTuple`` of the standard library, cheaper to import.

``cached_property`` is the standard one without its lock (until Python 3.12 two microseconds a value): two threads may
both work a value out, which is the same one here.

A command that answers in a fifth of a second cannot spend half of it on making classes: the standard decorator compiles
six methods for each class and imports ``inspect`` (1.6 ms a frozen, slotted class here, against 0.05 ms). This one
shares the methods and compiles ``__init__`` alone, for classes of which many objects are made; so does ``NamedTuple``
with ``__new__``. Type checkers see the originals; ``dataclasses.replace``, ``fields`` and ``asdict`` work on these
classes, which build the standard description when somebody asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass, field, fields, replace
    from functools import cached_property
    from typing import NamedTuple
else:
    from operator import attrgetter, itemgetter

    try:
        from _collections import _tuplegetter
    except ImportError:

        def _tuplegetter(index, doc):
            return property(itemgetter(index), doc=doc)

    MISSING = object()
    FEW = 64  # objects that are made without compiling: compiling costs as much as making a hundred

    class cached_property:
        """An attribute that is worked out when it is first read."""

        def __init__(self, make):
            self.make, self.__doc__, self.__wrapped__ = make, make.__doc__, make

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            found = instance.__dict__[self.name] = self.make(instance)
            return found

    class _Field:
        """A field's name and default, as far as ``__init__`` needs them."""

        __slots__ = ("compare", "default", "default_factory", "name")

        def __init__(self, default=MISSING, default_factory=MISSING, compare=True):
            self.name, self.default, self.default_factory, self.compare = "", default, default_factory, compare

    def field(*, default=MISSING, default_factory=MISSING, compare=True, repr=True):
        return _Field(default, default_factory, compare)

    class _Description:
        """``__dataclass_fields__``, made when it is first read."""

        def __get__(self, instance, owner):
            import dataclasses

            made = {}
            for f in owner._value_fields:
                default = dataclasses.MISSING if f.default is MISSING else f.default
                factory = dataclasses.MISSING if f.default_factory is MISSING else f.default_factory
                one = made[f.name] = dataclasses.field(default=default, default_factory=factory)
                one.name, one._field_type = f.name, dataclasses._FIELD
            return made

    class _Signature:
        """``__signature__``, made when it is first read."""

        def __get__(self, instance, owner):
            import inspect

            init = owner.__dict__["__init__"]
            whole = inspect.signature(_init(owner._value_fields, *init.how) if hasattr(init, "how") else init)
            return whole.replace(parameters=list(whole.parameters.values())[1:])

    def _starting(every, frozen, kw_only):
        """``__init__`` of the first objects of a class; then, and where the arguments do not fit, it compiles its own."""
        left, count, set_ = [FEW], len(every), object.__setattr__

        def __init__(self, *args, **kwargs):
            left[0] -= 1
            given = len(args)
            if left[0] >= 0 and given <= count and not (kw_only and given):
                values, used = list(args), 0
                for f in every[given:]:
                    value = kwargs.get(f.name, MISSING)
                    if value is not MISSING:
                        used += 1
                    elif f.default_factory is not MISSING:
                        value = f.default_factory()
                    else:
                        value = f.default
                    values.append(value)
                if used == len(kwargs) and not any(v is MISSING for v in values):
                    for f, value in zip(every, values, strict=True):
                        set_(self, f.name, value)
                    return
            owner = next(c for c in type(self).__mro__ if c.__dict__.get("__init__") is __init__)
            owner.__init__ = compiled = _init(every, frozen, kw_only)
            compiled(self, *args, **kwargs)

        __init__.how = frozen, kw_only
        return __init__

    def _init(names, frozen, kw_only):
        """``__init__`` with the fields as parameters, in their order."""
        scope, parameters, body = {"_set": object.__setattr__}, ["*"] if kw_only else [], []
        for f in names:
            value = f.name
            if f.default_factory is not MISSING:
                scope[f"_m_{f.name}"], scope["_none"] = f.default_factory, MISSING
                parameters.append(f"{f.name}=_none")
                value = f"_m_{f.name}() if {f.name} is _none else {f.name}"
            elif f.default is not MISSING:
                scope[f"_d_{f.name}"] = f.default
                parameters.append(f"{f.name}=_d_{f.name}")
            else:
                parameters.append(f.name)
            body.append(f"_set(self, {f.name!r}, {value})" if frozen else f"self.{f.name} = {value}")
        text = f"def __init__(self, {', '.join(parameters)}):\n " + "\n ".join(body or ["pass"])
        exec(text, scope)
        return scope["__init__"]

    def _values(self):
        return self._value_key(self)

    def _repr(self):
        inner = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in self._value_fields)
        return f"{type(self).__qualname__}({inner})"

    def _eq(self, other):
        return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented

    def _hash(self):
        return hash(_values(self))

    def _less(self, other):
        return _values(self) < _values(other) if other.__class__ is self.__class__ else NotImplemented

    def _no_setting(self, name, value=None):
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed")

    def _reduce(self):
        return _remake, (type(self), {f.name: getattr(self, f.name) for f in self._value_fields})

    def _remake(cls, values):
        return cls(**values)

    def dataclass(cls=None, *, frozen=False, slots=False, eq=True, kw_only=False, order=False):
        """As ``dataclasses.dataclass``, for the arguments that this project uses."""
        if cls is None:
            return lambda found: dataclass(found, frozen=frozen, slots=slots, eq=eq, kw_only=kw_only, order=order)
        own = []
        for name, kind in cls.__dict__.get("__annotations__", {}).items():  # noqa: RUF063
            if str(kind).startswith(("ClassVar", "typing.ClassVar")):
                continue
            given = cls.__dict__.get(name, MISSING)
            one = given if isinstance(given, _Field) else _Field(given)
            one.name = name
            own.append(one)
            if name in cls.__dict__ and (slots or one.default is MISSING):
                delattr(cls, name)
            elif isinstance(given, _Field):
                setattr(cls, name, one.default)
        inherited = {f.name: f for base in reversed(cls.__mro__[1:]) for f in base.__dict__.get("_value_fields", ())}
        every = tuple({**inherited, **{f.name: f for f in own}}.values())
        members = {"__init__": _starting(every, frozen, kw_only), "__repr__": _repr, "__reduce__": _reduce,
                   "_value_fields": every, "__dataclass_fields__": _Description(), "__signature__": _Signature(),
                   "__match_args__": tuple(f.name for f in every)}  # fmt: skip
        compared = [f.name for f in every if f.compare]
        if compared:
            members["_value_key"] = attrgetter(*compared)
        if eq:
            members["__eq__"], members["__hash__"] = _eq, _hash if frozen else None
        if order:
            members["__lt__"] = _less
        if frozen:
            members["__setattr__"] = members["__delattr__"] = _no_setting
        kept = {k: v for k, v in members.items() if k.startswith("_value") or k not in cls.__dict__}
        if not slots:
            for name, value in kept.items():
                setattr(cls, name, value)
            return cls
        body = {k: v for k, v in cls.__dict__.items() if k not in ("__dict__", "__weakref__")}
        body.update(kept, __slots__=tuple(f.name for f in own))
        return type(cls)(cls.__name__, cls.__bases__, body)

    def fields(of):
        return of._value_fields

    def replace(value, /, **changes):
        return type(value)(**{f.name: getattr(value, f.name) for f in value._value_fields} | changes)

    class _Named(tuple):
        """What every ``NamedTuple`` shares."""

        __slots__ = ()

        @classmethod
        def _make(cls, values):
            return cls(*values)

        def _replace(self, /, **changes):
            return type(self)(**{**self._asdict(), **changes})

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self):
            return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._asdict().items())})"

        def __getnewargs__(self):
            return tuple(self)

    def _new(names, defaults):
        """``__new__`` of the first objects of a class; then, and where the arguments do not fit, it compiles its own."""
        left, count, new = [FEW], len(names), tuple.__new__

        def __new__(cls, /, *args, **kwargs):
            left[0] -= 1
            if left[0] >= 0 and len(args) <= count:
                values = (*args, *(kwargs.get(n, defaults.get(n, MISSING)) for n in names[len(args) :]))
                if not any(v is MISSING for v in values) and kwargs.keys() <= set(names[len(args) :]):
                    return new(cls, values)
            inner = "".join(f"{n}, " for n in names)
            parameters = ", ".join(f"{n}=_d[{n!r}]" if n in defaults else n for n in names)
            compiled = eval(f"lambda _cls, {parameters}: _new(_cls, ({inner}))", {"_new": new, "_d": defaults})
            next(c for c in cls.__mro__ if "_fields" in c.__dict__).__new__ = compiled
            return compiled(cls, *args, **kwargs)

        return __new__

    class _NamedMeta(type):
        """Turns the body of a class into fields, as ``typing.NamedTuple`` does."""

        def __new__(meta, name, bases, body):
            fields_ = tuple(body.get("__annotations__", ()))
            defaults = {f: body.pop(f) for f in fields_ if f in body}
            body.pop("__classcell__", None)
            members = {f: _tuplegetter(i, f"Alias for field number {i}") for i, f in enumerate(fields_)}
            members |= {"_fields": fields_, "__match_args__": fields_, "_field_defaults": defaults, "__slots__": ()}
            return type(name, (_Named,), {**members, **body, "__new__": _new(fields_, defaults)})

    class _NamedRoot:
        def __mro_entries__(self, bases):
            return (_NamedBase,)

    _NamedBase = type.__new__(_NamedMeta, "NamedTuple", (), {})
    NamedTuple = _NamedRoot()


__all__ = ["NamedTuple", "cached_property", "dataclass", "field", "fields", "replace"]
