#!/usr/bin/env python3
"""Writes crates/api/src/protobuf/numbers.txt: which number each field has in its protobuf message.

Run it when the Kubernetes version changes, with the source of the k8s-pb crate at hand:

    scripts/protobuf_numbers.py ~/.cargo/registry/src/*/k8s-pb-*/src

One line per message of the groups and versions we serve: its name, then `field=number`, or
`field=number:Message` where the field is itself a message (named without its package).
Only facts are taken: names and numbers.
"""

import pathlib
import re
import sys

OUT = pathlib.Path(__file__).parent.parent / "crates/api/src/protobuf/numbers.txt"
MESSAGE = re.compile(r"^pub struct (\w+)(?:<[^>]*>)? \{(\}|.*?^\})", re.S | re.M)
FIELD = re.compile(r'#\[prost\(([^\]]*?)tag = "(\d+)"\)\]\s*pub (?:r#)?(\w+):\s*([^#}]*?),\n', re.S)
SERVED = re.compile(r"\.(v1|v2|resource|intstr|runtime)$")
SKIPPED = re.compile(r"\.(testapigroup|apidiscovery|admission|imagepolicy)\.")


def package(root, path):
    name = "io.k8s." + ".".join(path.relative_to(root).parent.parts)
    return name.replace("_apiserver", "-apiserver").replace("kube_", "kube-")


def fields(body):
    for kind, number, field, rust in FIELD.findall(body):
        # `Option<super::v1::LabelSelector>` and `Vec<Volume>` name a message at their end.
        is_message = "message" in kind and "map" not in kind
        target = ":" + re.findall(r"\w+", rust)[-1] if is_message else ""
        yield f"{field}={number}{target}"


def main():
    root = pathlib.Path(sys.argv[1])
    messages = {}
    for path in sorted(root.rglob("mod.rs")):
        name = package(root, path)
        # Mutating admission policies are newer in v1 than the crate; v1beta1 has the same numbers.
        beta = name.endswith(".admissionregistration.v1beta1")
        if (beta or SERVED.search(name)) and not SKIPPED.search(name):
            for message, body in MESSAGE.findall(path.read_text()):
                full = f"{name.removesuffix('beta1') if beta else name}.{message}"
                messages.setdefault(full, list(fields(body)))
    lines = [" ".join([name, *numbers]) for name, numbers in sorted(messages.items())]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} messages")


if __name__ == "__main__":
    main()
