# SPDX-License-Identifier: BSL-1.0
"""Makes mutants of a header: copies with one small change each.

A change is one of: a comparison, arithmetic or bit operator becomes its neighbour; an operand of &&
or || stops counting; a condition is forced true or false; a number moves by one; true and false, min
and max swap; a ! goes; a statement goes. Swapped && and || and negated conditions are left out: a
test that sees each operand and each forced condition sees them as well.

Text is enough because the code is formatted: binary operators stand between spaces, template
brackets, references and pointers do not.

Compiling costs a hundred times what running does, so most mutants of a header share one copy of it,
in which the variable `amux_mutant` selects one: `(amux_mutant == 7 ? a <= b : a < b)`.
"""
import bisect
import re

SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+",
         "*": "/", "/": "*", "+=": "-=", "-=": "+=", "&": "|", "|": "&", "&=": "|=", "|=": "&=",
         "<<": ">>", ">>": "<<", "^": "|"}
PRECEDENCE = {"||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7,
              ">=": 7, "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10}
OPERATOR = re.compile(r"(?<=\s)(<=|>=|==|!=|\+=|-=|&=|\|=|<<|>>|&&|\|\||[<>+\-*/&|^?=])(?=\s)")
# What is decided while compiling: a change does not compile, or changes nothing.
COMPILE_TIME = re.compile(r"\s*(#|template\b|requires\b|concept\b|static_assert\b|using\b|friend\b"
                          r"|typedef\b|namespace\b|.*\bif constexpr\b)|.*\bconcept\b")
NOT_STATEMENTS = re.compile(r"(using|friend|template|static_assert|struct|class|enum|namespace"
                            r"|typedef|throw|extern|public|private|protected|case|default|union|if|while"
                            r"|for|switch|do|else|try|catch)\b|(co_)?return\b[^;]")
# What is declared is used later, so it does not compile without; a guard may well.
DECLARATION = re.compile(r"(static |constexpr |const |thread_local )*[\w:]+(<[^;=]*>)?"
                         r"( const)?( |[&*]+ | [&*]+|\* const )(\w+|\[.*\])( =|;|\{|\()")
GUARD = re.compile(r"(guard|lock|locked|visit|listed|detach|keep|self|core|kept|after|place)\b"
                   r".*\w( =|\{|\()")
DECLARES = re.compile(r"[\w>*&] [*&]?\w+ = ")


class Mutant:
    """`form` and `span`: what of the text is chosen at run time, as an expression, a truth or
    statements; form None: it must be compiled by itself."""

    def __init__(self, maker, kind, start, end, new, form=None, span=None):
        text = maker.text
        self.header, self.line, self.kind = maker.header, maker.line_of(start), kind
        self.start, self.end, self.new, self.form = start, end, new, form
        self.span = span or (start, end)
        self.text = text[:start] + new + text[end:]
        first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
        self.before = " ".join(text[first:last].split())
        self.after = " ".join((text[first:start] + new + text[end:last]).split())
        self.number = 0

    @property
    def id(self):
        return f"{self.header.rsplit('/', 1)[-1].removesuffix('.hpp')}-{self.number:03}"

    def choice(self, original, text):
        """What stands for the span when this one can be chosen; `original` may hold others."""
        start, end = self.span
        changed = text[start:self.start] + self.new + text[self.end:end]
        if self.form == "expression":
            return f"(amux_mutant == {self.number} ? ({changed}) : ({original}))"
        if self.form == "truth":
            return f"(amux_mutant == {self.number} ? bool({changed}) : bool({original}))"
        return f"{{ if (amux_mutant == {self.number}) {{ {changed} }} else {{ {original} }} }}"

    def __str__(self):
        return (f"{self.id}  include/{self.header}:{self.line}  {self.kind}\n"
                f"    - {self.before}\n    + {self.after}")


def blanked(text):
    """The same text with comments, strings and characters made of spaces."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
                         r"|(?<![0-9a-zA-Z_])'(?:\\.|[^'\\\n])+'", re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def closing(code, start):
    """Where the bracket at `start` closes."""
    depth = 0
    for i in range(start, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth == 0:
            return i
    return len(code) - 1


class Maker:
    def __init__(self, header, text):
        self.header, self.text, self.code = header, text, blanked(text)
        self.starts = [0] + [m.end() for m in re.finditer("\n", text)]
        self.at = {m.start(): m[1] for m in OPERATOR.finditer(self.code)}
        self.skipped = self.compile_time()
        self.found = []

    def line_of(self, at):
        return bisect.bisect_right(self.starts, at)

    def compile_time(self):
        spans = [m.span() for m in re.finditer(r"\bnoexcept\([^;{]*\)|\bdecltype\([^;{]*\)"
                                               r"|operator\s*[^\s\w]+", self.code)]
        for start, line in zip(self.starts, self.code.split("\n")):
            if COMPILE_TIME.match(line):
                end = start + len(line)
                opened = self.code.find("(", start, end)
                spans.append((start, max(end, closing(self.code, opened)) if opened >= 0 else end))
        return spans

    def add(self, kind, start, end, new, form=None, span=None):
        if not any(first <= start < last for first, last in self.skipped):
            self.found.append(Mutant(self, kind, start, end, new, form, span))

    def bound(self, at, step, precedence):
        """How far the operand beside an operator reaches: to brackets, or what binds less."""
        code, depth, i = self.code, 0, at
        opens, closes = ("([{", ")]}") if step > 0 else (")]}", "([{")
        while 0 <= i < len(code):
            c = code[i]
            if c in opens:
                depth += 1
            elif c in closes:
                if depth == 0:
                    break
                depth -= 1
            elif depth == 0:
                if c in ";," or (c == ":" and "::" not in code[i - 1:i + 2]):
                    break
                known = self.at.get(i)
                if known and (PRECEDENCE.get(known, 0) < precedence + (step > 0)):
                    break
                if step < 0:
                    if (i - 1 in self.at and len(self.at[i - 1]) == 2 and
                            PRECEDENCE.get(self.at[i - 1], 0) < precedence):
                        break
                    word = re.search(r"\b(return|co_return|throw|case|else)$",
                                     code[max(0, i - 9):i + 1])
                    if word and not re.match(r"\w", code[i + 1]):
                        break
            i += step
        first, last = (at, i) if step > 0 else (i + 1, at + 1)
        stripped = code[first:last]
        return (first + len(stripped) - len(stripped.lstrip()),
                last - len(stripped) + len(stripped.rstrip()))

    def statement_around(self, at):
        """The statement that begins at `at`, or None: up to its semicolon."""
        before = self.code[:at].rstrip()
        if before[-1:] not in tuple(";{})") and not before.endswith("else"):
            return None
        if not self.in_function(at):
            return None
        end, depth = at, 0
        while end < len(self.code) and (self.code[end] != ";" or depth > 0) and depth >= 0:
            depth += (self.code[end] in "([{") - (self.code[end] in ")]}")
            end += 1
        return (at, end + 1) if depth == 0 and end < len(self.code) else None

    def start_of_statement(self, at):
        i, depth = at - 1, 0
        while i >= 0:
            c = self.code[i]
            if c in ")]}":
                if depth == 0 and c == "}":
                    break
                depth += 1
            elif c in "([{":
                if depth == 0:
                    break
                depth -= 1
                if depth == 0 and re.search(r"\b(if|for|while) $", self.code[:i]):
                    i = closing(self.code, i)
                    break
            elif c == ";" and depth == 0:
                break
            i -= 1
        rest = self.code[i + 1:at]
        start = i + 1 + len(rest) - len(rest.lstrip())
        return start + len("else ") if self.code.startswith("else ", start) else start

    def operators(self):
        for start, word in self.at.items():
            if word not in SWAPS or self.code[:start].rstrip().endswith(("template", "operator")):
                continue
            new, end = SWAPS[word], start + len(word)
            if word[-1] == "=" and word not in PRECEDENCE:
                span = self.statement_around(self.start_of_statement(start))
                self.add(f"{word} becomes {new}", start, end, new, span and "statements", span)
            else:
                left = self.bound(start - 1, -1, PRECEDENCE[word])[0]
                right = self.bound(end, 1, PRECEDENCE[word])[1]
                form = "truth" if 6 <= PRECEDENCE[word] <= 7 else "expression"
                self.add(f"{word} becomes {new}", start, end, new, form, (left, right))
        for m in re.finditer(r"(\+\+|--)([\w.]|->|::)*", self.code):
            self.add("++ and --", m.start(1), m.end(1), "--" if m[1] == "++" else "++",
                     "expression" if m[0] != m[1] else None, m.span())

    def operands(self):
        for start, word in self.at.items():
            if word not in ("&&", "||"):
                continue
            neutral = "true" if word == "&&" else "false"
            for side, span in (("left", self.bound(start - 1, -1, PRECEDENCE[word])),
                               ("right", self.bound(start + 2, 1, PRECEDENCE[word]))):
                self.add(f"{side} of {word} does not count", *span, neutral, "truth", span)

    def conditions(self):
        for m in re.finditer(r"\b(if|while) \(", self.code):
            start, end = m.end(), closing(self.code, m.end() - 1)
            condition = self.text[start:end]
            if ";" in self.code[start:end] or DECLARES.search(self.code[start:end]):
                continue
            self.add("condition is true", start, end, f"({condition}) || true", "truth")
            self.add("condition is false", start, end, f"({condition}) && false", "truth")
        for start, word in self.at.items():
            if word == "?":
                span = self.bound(start - 1, -1, 1)
                condition = self.text[span[0]:span[1]]
                self.add("?: takes the second", *span, f"({condition}) && false", "truth", span)
                self.add("?: takes the first", *span, f"({condition}) || true", "truth", span)

    def literals(self):
        for m in re.finditer(r"(?<![\w.'])(\d+)(u?)(?![\w.'])", self.code):
            value = int(m[1])
            self.add("number", *m.span(), {0: "1", 1: "0"}.get(value, str(value + 1)) + m[2],
                     "expression")
        for m in re.finditer(r"\b(true|false)\b(?!_)", self.code):
            self.add("true and false", *m.span(), "false" if m[0] == "true" else "true", "truth")
        for m in re.finditer(r"\((?:std::)?(min|max)\)\(", self.code):
            self.add("min and max", *m.span(1), "max" if m[1] == "min" else "min", "expression",
                     (m.start(), closing(self.code, m.end() - 1) + 1))

    def negations(self):
        for m in re.finditer(r"!(?=[\w(*])", self.code):
            if re.search(r"((if|while) \(|(&&|\|\|)\s*)$", self.code[:m.start()]):
                continue  # forced conditions and operands do that
            self.add("! goes", *m.span(), "", "truth",
                     (m.start(), self.bound(m.end(), 1, 10)[1]))

    def statements(self):
        for m in re.finditer(r"(?:[;{})]|\belse|\bdefault:|\bcase [\w:]+:)\s+(?=[\w*(:]|\+\+|--)",
                             self.code):
            span = self.statement_around(m.end())
            if span is None:
                continue
            statement = " ".join(self.code[slice(*span)].split())
            if NOT_STATEMENTS.match(statement):
                continue
            declares = DECLARATION.match(statement)
            if declares and not GUARD.search(statement):
                continue
            alone = self.is_alone_in_if(m.start())
            if alone and not self.code[span[1]:].lstrip().startswith("else"):
                continue  # forcing the condition does that
            self.add("statement goes", *span, ";", None if declares else "statements", span)
        for m in re.finditer(r"\bif \(", self.code):
            # A condition that declares cannot be forced.
            end = closing(self.code, m.end() - 1)
            body = re.match(r"\s*\{", self.code[end + 1:])
            if body and DECLARES.search(self.code[m.end():end]):
                start = end + body.end()
                span = (start, closing(self.code, start) + 1)
                self.add("body goes", *span, "{}", "statements", span)

    def is_alone_in_if(self, at):
        """Whether the bracket at `at` closes the condition of an if that can be forced."""
        if self.code[at] != ")":
            return False
        depth = 0
        for i in range(at, -1, -1):
            depth += (self.code[i] == ")") - (self.code[i] == "(")
            if depth == 0:
                return self.code[:i].endswith("if ") and not DECLARES.search(self.code[i:at])
        return False

    def in_function(self, at):
        """Whether the innermost bracket around is the brace of a function, or of what is in one."""
        depth = 0
        for i in range(at - 1, -1, -1):
            if self.code[i] in ")]}":
                depth += 1
            elif self.code[i] in "([{":
                if depth == 0:
                    head = re.split(r"[;{}]", self.code[:i])[-1]
                    while re.search(r"<[^<>]*>", head):
                        head = re.sub(r"<[^<>]*>", "", head)
                    return self.code[i] == "{" and \
                        not re.search(r"\b(struct|class|namespace|union|enum)\b", head)
                depth -= 1
        return False

    def mutants(self):
        for make in (self.operators, self.operands, self.conditions, self.literals, self.negations,
                     self.statements):
            make()
        made, seen = [], {self.text}
        for mutant in sorted(self.found, key=lambda m: (m.start, m.end, m.new)):
            if mutant.text not in seen:
                seen.add(mutant.text)
                made.append(mutant)
                mutant.number = len(made)
        return made


def mutants_of(header, text):
    return Maker(header, text).mutants()


def layers_of(mutants):
    """Lists of mutants whose spans lie beside or inside each other."""
    layers = []
    for mutant in sorted(mutants, key=lambda m: (m.span[0], -m.span[1])):
        for layer in layers:
            if all(mutant.span[0] >= other.span[1] or mutant.span[1] <= other.span[1]
                   for other in layer):
                layer.append(mutant)
                break
        else:
            layers.append([mutant])
    return layers


def with_all(text, layer):
    """The header in which every mutant of the layer can be chosen."""
    rest = sorted(layer, key=lambda m: (m.span[0], -m.span[1], m.number))

    def rendered(start, end):
        out, at = [], start
        while rest and rest[0].span[0] < end and rest[0].span[1] <= end:
            mutant = rest.pop(0)
            out.append(text[at:mutant.span[0]])
            out.append(mutant.choice(rendered(*mutant.span), text))
            at = mutant.span[1]
        return "".join(out) + text[at:end]
    return rendered(0, len(text))
