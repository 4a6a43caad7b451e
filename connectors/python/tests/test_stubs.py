"""The stubs say what the module has: names, kinds, parameters and settings."""

import ast
import inspect
import pathlib
import re

import pytest

import kera
import kera.aio
from kera import _kera

STUB = pathlib.Path(kera.__file__).with_name("_kera.pyi")
TREE = {node.name: node for node in ast.parse(STUB.read_text()).body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
CLASSES = {name: node for name, node in TREE.items() if isinstance(node, ast.ClassDef)}
# What every class has, whether it says something of its own or not. Pickle notes slot names.
OF_ALL = {"__doc__", "__module__", "__new__", "__lt__", "__le__", "__gt__", "__ge__", "__ne__", "__eq__", "__hash__", "__repr__"}
OF_ALL |= {"__slotnames__"}


def members(node):
    return {item.name: item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))}


def is_property(function):
    return any(isinstance(mark, ast.Name) and mark.id == "property" for mark in function.decorator_list)


def shape(function):
    """Its parameters but for the first: (name, kind, whether it has a default)."""
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    with_default = len(plain) - len(given.defaults)
    parameters = [(each.arg, "plain", index >= with_default) for index, each in enumerate(plain)][1:]
    named = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return parameters, {each.arg: default is not None for each, default in named}


def of_module(callable, skip):
    """The same of the module's, and whether it takes settings."""
    plain, named, settings = [], {}, False
    for parameter in list(inspect.signature(callable).parameters.values())[skip:]:
        has_default = parameter.default is not parameter.empty
        if parameter.kind is parameter.VAR_KEYWORD:
            settings = True
        elif parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = has_default
        else:
            plain.append((parameter.name, "plain", has_default))
    return plain, named, settings


def test_both_have_the_same_names():
    public = {name for name in vars(_kera) if not name.startswith("__")}
    assert set(TREE) == public
    assert set(kera.__all__) == {"errors"} | {name for name in public if name[0] != "_"} | {
        name for name, value in vars(kera.errors).items() if isinstance(value, type)
    }


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_what_the_stubs_say(name):
    has, said = vars(getattr(_kera, name)), members(CLASSES[name])
    assert set(has) - OF_ALL == set(said) - OF_ALL
    for member, function in said.items():
        if member == "__new__":
            continue
        assert is_property(function) == inspect.isdatadescriptor(has[member]), member
        if is_property(function) or member.startswith("__"):
            continue
        plain, named = shape(function)
        has_plain, has_named, settings = of_module(has[member], 1)
        assert plain == has_plain, member
        assert has_named.items() <= named.items() if settings else has_named == named, member


@pytest.mark.parametrize("name", [name for name, node in CLASSES.items() if "__new__" in members(node)])
def test_constructors_take_what_the_stubs_say(name):
    plain, named = shape(members(CLASSES[name])["__new__"])
    has_plain, has_named, settings = of_module(getattr(_kera, name), 0)
    assert plain == has_plain
    assert has_named.items() <= named.items() if settings else has_named == named


def test_classes_without_a_constructor_are_made_by_none():
    for name, node in CLASSES.items():
        if "__new__" not in members(node):
            with pytest.raises(TypeError, match="(?i)no constructor|cannot create"):
                getattr(_kera, name)()


def known_settings(call):
    with pytest.raises(TypeError, match="has no setting no_such; it has ") as told:
        call(no_such=1)
    return re.search("it has (.*)", str(told.value))[1].split(", ")


def test_settings_are_those_that_the_module_knows(shared):
    admin = kera.Admin(bootstrap=shared.address)
    for call, function in [
        (lambda **given: kera.Producer("s", **given), members(CLASSES["Producer"])["__new__"]),
        (lambda **given: kera.Consumer("s", "g", **given), members(CLASSES["Consumer"])["__new__"]),
        (lambda **given: kera.Reader("s", **given), members(CLASSES["Reader"])["__new__"]),
        (kera.Admin, members(CLASSES["Admin"])["__new__"]),
        (kera.Transactions, members(CLASSES["Transactions"])["__new__"]),
        (lambda **given: admin.create_stream("s", **given), members(CLASSES["Admin"])["create_stream"]),
        (lambda **given: admin.alter_stream("s", **given), members(CLASSES["Admin"])["alter_stream"]),
    ]:
        known = known_settings(call)
        said = list(shape(function)[1])
        assert sorted(known) == sorted(set(said) - {"if_not_exists"})
        for setting in known:
            # None of them takes this, and none says that it is not known.
            with pytest.raises((TypeError, kera.SettingError)) as told:
                call(**{setting: object()})
            assert "has no setting" not in str(told.value), setting


def test_the_stubs_of_coroutines_say_what_their_module_has():
    tree = ast.parse(STUB.with_name("aio.pyi").read_text()).body
    classes = {node.name: node for node in tree if isinstance(node, ast.ClassDef)}
    assert set(kera.aio.__all__) == {name for name in classes if name[0] != "_"}
    for name, node in classes.items():
        kind, said = getattr(kera.aio, name), members(node)
        bases = [base for base in kind.__mro__[1:] if base is not object]
        # Private names, and what a base says already, are not said.
        has = {each for each in vars(kind) if each[0] != "_" and not any(each in vars(base) for base in bases)}
        assert has == {each for each in said if each[0] != "_"}, name
        for member, function in said.items():
            of = getattr(kind, member)
            assert is_property(function) == inspect.isdatadescriptor(of), member
            if not is_property(function):
                has_async = inspect.iscoroutinefunction(of)
                assert has_async == isinstance(function, ast.AsyncFunctionDef), member
            if not is_property(function) and member[0] != "_":
                plain, named = shape(function)
                has_plain, has_named, _ = of_module(of, 1)
                assert (plain, named) == (has_plain, has_named), member
