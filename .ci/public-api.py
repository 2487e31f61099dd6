#!/usr/bin/env python3
"""Lists the public interface of a crate, from the JSON of rustdoc: one item a line, with its types.

    public-api.py JSON                   print the list
    public-api.py JSON LIST              compare it with the file LIST; status 1 if they differ
    public-api.py JSON --without NAME    print the JSON as it were if the functions NAME were not public

An item stands there once, under its shortest public path. Its other paths are lines "use".
"""

import difflib
import json
import sys


# Formats of the JSON that this reads: that of Rust 1.95. Another one may say the same in other words, which would be left
# out silently; the notes on rustdoc_json_types::FORMAT_VERSION say what has changed.
FORMAT_VERSIONS = (57,)


class Listing:
    def __init__(self, crate):
        self.index, self.paths = crate["index"], crate["paths"]
        self.lines, self.public = set(), {}
        root = self.index[str(crate["root"])]
        self.find(root, root["name"], ())
        for id, paths in self.public.items():
            paths[:] = sorted(set(paths), key=lambda path: (path.count("::"), path))
            self.list(self.index[id], paths[0])
            self.lines.update(f"use {path} = {paths[0]}" for path in paths[1:])

    # Paths.

    def find(self, module, path, above):
        """Notes the public paths of all that the module has."""
        for id in module["inner"]["module"]["items"]:
            item = self.item(id)
            if item and item["visibility"] == "public":
                self.find_item(item, path, above)

    def find_item(self, item, path, above):
        (kind, inner), = item["inner"].items()
        if kind == "use":
            return self.find_use(inner, path, above)
        return self.note(item, f"{path}::{item['name']}", above)

    def find_use(self, use, path, above):
        target = self.item(use["id"])
        if target is None:
            known = self.paths.get(str(use["id"]))
            name = "::".join(known["path"]) if known else use["source"]
            self.lines.add(f"use {path}::{use['name']} = {name}")
        elif not use["is_glob"]:
            self.note(target, f"{path}::{use['name']}", above)
        elif "module" in target["inner"] and target["id"] not in above:
            self.find(target, path, (*above, target["id"]))

    def note(self, item, path, above):
        if "module" in item["inner"]:
            # A module that has itself in it, by a use.
            if item["id"] not in above:
                self.find(item, path, (*above, item["id"]))
            return
        if "use" in item["inner"]:
            return self.find_use(item["inner"]["use"], path, above)
        self.public.setdefault(str(item["id"]), []).append(path)

    # Types.

    def path(self, path):
        id = str(path.get("id"))
        known = self.paths.get(id)
        name = "::".join(known["path"]) if known else path.get("path", path.get("name"))
        if id in self.public:
            name = min(self.public[id], key=lambda path: (path.count("::"), path))
        return name + self.arguments(path.get("args"))

    def arguments(self, args):
        if not args:
            return ""
        if "parenthesized" in args:
            of = args["parenthesized"]
            output = f" -> {self.type(of['output'])}" if of["output"] else ""
            return f"({', '.join(map(self.type, of['inputs']))}){output}"
        of = args["angle_bracketed"]
        parts = [self.argument(arg) for arg in of["args"]]
        for constraint in of["constraints"]:
            (kind, value), = constraint["binding"].items()
            value = self.term(value) if kind == "equality" else self.bounds(value)
            parts.append(f"{constraint['name']}{' = ' if kind == 'equality' else ': '}{value}")
        return f"<{', '.join(parts)}>" if parts else ""

    def argument(self, arg):
        if arg == "infer":
            return "_"
        (kind, value), = arg.items()
        return {"lifetime": str, "type": self.type, "const": lambda it: it["expr"]}[kind](value)

    def term(self, term):
        return self.type(term["type"]) if "type" in term else term["constant"]["expr"]

    def bounds(self, bounds):
        return " + ".join(map(self.bound, bounds))

    def bound(self, bound):
        (kind, value), = bound.items()
        if kind == "trait_bound":
            mark = {"none": "", "maybe": "?", "maybe_const": "~const "}[value["modifier"]]
            return mark + self.path(value["trait"])
        return value if kind == "outlives" else "use<>"

    def type(self, of):
        (kind, value), = of.items()
        if kind == "resolved_path":
            return self.path(value)
        if kind in ("generic", "primitive"):
            return value
        if kind == "tuple":
            return f"({', '.join(map(self.type, value))})"
        if kind == "slice":
            return f"[{self.type(value)}]"
        if kind == "array":
            return f"[{self.type(value['type'])}; {value['len']}]"
        if kind in ("borrowed_ref", "raw_pointer"):
            sign = "&" if kind == "borrowed_ref" else "*"
            lifetime = f"{value['lifetime']} " if value.get("lifetime") else ""
            return f"{sign}{lifetime}{'mut ' if value['is_mutable'] else ''}{self.type(value['type'])}"
        if kind == "impl_trait":
            return f"impl {self.bounds(value)}"
        if kind == "dyn_trait":
            traits = [self.path(one["trait"]) for one in value["traits"]]
            return "dyn " + " + ".join(traits + [value["lifetime"]] * bool(value["lifetime"]))
        if kind == "qualified_path":
            trait = f" as {self.path(value['trait'])}" if value["trait"] else ""
            return f"<{self.type(value['self_type'])}{trait}>::{value['name']}"
        if kind == "function_pointer":
            return self.signature("fn", value["sig"])
        return json.dumps(of, sort_keys=True)

    def signature(self, name, signature):
        inputs = ", ".join(self.type(of) for _, of in signature["inputs"])
        output = f" -> {self.type(signature['output'])}" if signature["output"] else ""
        return f"{name}({inputs}){output}"

    def generics(self, generics):
        params = []
        for param in generics["params"]:
            (kind, value), = param["kind"].items()
            if kind == "type" and not value["is_synthetic"]:
                bounds = f": {self.bounds(value['bounds'])}" if value["bounds"] else ""
                params.append(param["name"] + bounds)
            elif kind == "const":
                params.append(f"const {param['name']}: {self.type(value['type'])}")
            elif kind == "lifetime":
                params.append(param["name"])
        where = [
            f"{self.type(one['bound_predicate']['type'])}: {self.bounds(one['bound_predicate']['bounds'])}"
            for one in generics["where_predicates"]
            if "bound_predicate" in one
        ]
        return (f"<{', '.join(params)}>" if params else ""), (f" where {', '.join(where)}" if where else "")

    # Items.

    def item(self, id):
        item = self.index.get(str(id))
        return item if item and not self.is_hidden(item) else None

    @staticmethod
    def is_hidden(item):
        return any("doc(hidden)" in str(attribute) for attribute in item["attrs"])

    def list(self, item, at):
        (kind, inner), = item["inner"].items()
        mark = "#[non_exhaustive] " if any("non_exhaustive" in str(it) for it in item["attrs"]) else ""
        if kind == "function":
            return self.function(inner, at)
        if kind == "constant":
            value = inner["const"]["value"] or inner["const"]["expr"]
            return self.lines.add(f"constant {at}: {self.type(inner['type'])} = {value}")
        if kind == "static":
            return self.lines.add(f"static {at}: {self.type(inner['type'])}")
        if kind == "assoc_const":
            value = f" = {inner['value']}" if inner["value"] else ""
            return self.lines.add(f"const {at}: {self.type(inner['type'])}{value}")
        if kind == "assoc_type":
            return self.lines.add(f"type {at}{self.associated(inner)}")
        if kind == "type_alias":
            generics, where = self.generics(inner["generics"])
            return self.lines.add(f"type {at}{generics} = {self.type(inner['type'])}{where}")
        if kind in ("macro", "proc_macro"):
            return self.lines.add(f"macro {at}!")
        if kind not in ("struct", "enum", "union", "trait"):
            return self.lines.add(f"{kind} {at}")
        generics, where = self.generics(inner["generics"])
        bounds = f": {self.bounds(inner['bounds'])}" if inner.get("bounds") else ""
        self.lines.add(f"{mark}{kind} {at}{generics}{bounds}{where}")
        if kind == "trait":
            for id in inner["items"]:
                if member := self.item(id):
                    self.list(member, f"{at}::{member['name']}")
            return
        if kind == "struct":
            self.fields(inner["kind"], at)
        for id in inner.get("variants", []):
            if variant := self.item(id):
                self.lines.add(f"variant {at}::{variant['name']}")
                self.fields(variant["inner"]["variant"]["kind"], f"{at}::{variant['name']}", True)
        for id in inner["impls"]:
            self.implementation(self.index.get(str(id)), at)

    def associated(self, inner):
        generics, where = self.generics(inner["generics"])
        bounds = f": {self.bounds(inner['bounds'])}" if inner["bounds"] else ""
        value = f" = {self.type(inner['type'])}" if inner["type"] else ""
        return f"{generics}{bounds}{value}{where}"

    def fields(self, kind, at, are_public=False):
        if kind in ("unit", "plain"):
            return
        (kind, inner), = kind.items()
        for id in inner if kind == "tuple" else inner["fields"]:
            field = self.item(id) if id is not None else None
            if field and (are_public or field["visibility"] == "public"):
                self.lines.add(f"field {at}.{field['name']}: {self.type(field['inner']['struct_field'])}")
        if kind == "tuple" or inner["has_stripped_fields"]:
            hidden = [id for id in (inner if kind == "tuple" else []) if id is None]
            if kind != "tuple" or hidden:
                self.lines.add(f"private fields in {at}")

    def implementation(self, item, at):
        if item is None or self.is_hidden(item):
            return
        inner = item["inner"]["impl"]
        if inner["is_synthetic"] or inner["blanket_impl"]:
            # Send and Sync are promises, too; the rest of them everybody has.
            trait = inner["trait"]["path"].rsplit("::", 1)[-1]
            if inner["is_synthetic"] and trait in ("Send", "Sync", "Unpin") and not inner["is_negative"]:
                self.lines.add(f"impl {trait} for {at}")
            return
        if inner["trait"]:
            # Of the compiler's own, by `derive(PartialEq)`: nobody can use it.
            if inner["trait"]["path"].rsplit("::", 1)[-1] == "StructuralPartialEq":
                return
            generics, where = self.generics(inner["generics"])
            members = [self.index[str(id)] for id in inner["items"] if str(id) in self.index]
            types = [
                f"type {member['name']}{self.associated(member['inner']['assoc_type'])}"
                for member in members
                if "assoc_type" in member["inner"]
            ]
            types = f" {{ {'; '.join(types)} }}" if types else ""
            return self.lines.add(f"impl{generics} {self.path(inner['trait'])} for {at}{where}{types}")
        for id in inner["items"]:
            member = self.item(id)
            if member and member["visibility"] == "public":
                self.list(member, f"{at}::{member['name']}")

    def function(self, inner, at):
        generics, where = self.generics(inner["generics"])
        header = inner["header"]
        words = [word for word in ("const", "unsafe", "async") if header[f"is_{word}"]]
        default = "" if inner["has_body"] else " (required)"
        self.lines.add(f"{' '.join(words + ['fn'])} {self.signature(at + generics, inner['sig'])}{where}{default}")

    def text(self):
        return "".join(f"{line}\n" for line in sorted(self.lines))


def without(crate, name):
    functions = [item for item in crate["index"].values() if item["name"] == name and "function" in item["inner"]]
    for function in functions:
        function["visibility"] = "crate"
    json.dump(crate, sys.stdout)
    return int(not functions)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        crate = json.load(file)
    if crate["format_version"] not in FORMAT_VERSIONS:
        print(f"{sys.argv[0]}: {sys.argv[1]} has format {crate['format_version']}, not {FORMAT_VERSIONS}", file=sys.stderr)
        return 2
    if sys.argv[2:3] == ["--without"]:
        return without(crate, sys.argv[3])
    listing = Listing(crate).text()
    if len(sys.argv) < 3:
        print(listing, end="")
        return 0
    with open(sys.argv[2], encoding="utf-8") as file:
        before = file.read()
    lines = before.splitlines(), listing.splitlines()
    sys.stdout.writelines(f"{line}\n" for line in difflib.unified_diff(*lines, "listed", "there now", lineterm="", n=0))
    return int(before != listing)


sys.exit(main())
