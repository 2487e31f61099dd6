//! The generated Rust, and the errors, of small descriptions. That generated Rust compiles and codes as C
//! does is seen in `engine/xdr/suite`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

use proptest::collection::vec;
use proptest::prelude::*;
use spinrpc_xdrgen::Generator;
use spinrpc_xdrgen::model::{Basic, Bound, Kind, Model, Ty};

fn rust(text: &str) -> String {
    Generator::new().rust("t.x", text).unwrap()
}

fn error(text: &str) -> String {
    Generator::new().rust("t.x", text).unwrap_err().to_string()
}

#[test]
fn mistakes_in_the_grammar_are_named_with_place_and_remedy() {
    let cases = [
        ("struct a { int b }", "1:18: unexpected `}`; write `;` here"),
        ("const A = ;", "1:11: unexpected `;`; write a number or the name of a constant here"),
        ("enum a { };", "1:10: unexpected `}`; write a name here"),
        ("struct a { void; };", "1:12: unexpected `void`; write a type other than void here"),
        (
            "int x;",
            "1:1: unexpected `int`; write `const`, `typedef`, `enum`, `struct`, `union` or `program` here",
        ),
        ("typedef void;", "1:1: a typedef of void; take it out"),
        (
            "struct a {\n  quadruple q;\n};",
            "2:3: the type `quadruple` is not supported; declare it as `opaque x[16]`",
        ),
        ("struct a { int b; ", "1:19: unexpected the end of the file; write `}` here"),
        (
            "/*@ fast */ typedef opaque a<>;",
            "1:1: unknown annotation `fast`; there are `ddp` and `bytes`",
        ),
        (
            "struct a { int b[]; };",
            "1:18: unexpected `]`; write a number or the name of a constant here",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(error(text), format!("t.x:{expected}"), "{text}");
    }
}

#[test]
fn mistakes_in_the_meaning_are_named_with_place_and_remedy() {
    let cases = [
        ("typedef foo a;", "1:9: there is no type `foo`"),
        ("typedef opaque a<B>;", "1:18: there is no constant `B`"),
        ("typedef opaque a<-1>;", "1:18: a length of -1"),
        ("typedef opaque a<4294967296>;", "1:18: a length of 4294967296"),
        ("typedef int a[0];", "1:15: an array without items"),
        ("typedef int a; typedef hyper a;", "1:30: `a` is defined twice"),
        ("const A = \"b\"; const A = \"c\";", "1:22: `A` is defined twice"),
        ("const A = B; const B = C; const C = 1;", "1:11: there is no constant `B`"),
        ("const A = \"4\"; typedef opaque b<A>;", "1:33: there is no constant `A`"),
        ("const A = 1; enum b { A = 2 };", "1:23: `A` is defined twice"),
        ("enum a { B = 2147483648 };", "1:10: `B` is 2147483648, which does not fit 32 bits"),
        ("struct a { string s; };", "1:19: `string` without a length"),
        ("struct a { opaque s; };", "1:19: `opaque` without a length"),
        ("struct a { a b; };", "1:8: `a` contains itself"),
        ("struct a { int v; a b<>; };", "1:8: `a` contains itself"),
        ("struct t { t *l; opaque b[4096]; };", "1:8: `t` contains itself, and each level takes"),
        ("struct t { t *l; /*@ ddp */ opaque b<>; };", "1:8: `t` contains itself and has data for"),
        ("typedef a b; typedef b a;", "1:11: `b` contains itself"),
        ("union u switch (hyper h) { case 1: void; };", "1:23: `h` cannot be the discriminant"),
        (
            "enum e { A = 1 }; union u switch (e h) { case 2: void; };",
            "1:47: case 2 is not a value",
        ),
        ("union u switch (bool b) { case 2: void; };", "1:32: case 2 is not a value"),
        ("union u switch (int i) { case 1: case 1: void; };", "1:39: two cases of value 1"),
        ("/*@ ddp */ typedef string a<>;", "1:27: `ddp` on `a`, which is not `opaque<>`"),
        ("/*@ bytes */ typedef opaque a<>;", "1:29: `bytes` on `a`, which is not `string<>`"),
        (
            "/*@ ddp */ typedef opaque a<>; typedef a b[2];",
            "1:42: `b` has items for direct placement in a list or in an array of fixed length",
        ),
        (
            "program P { version V { void A(void) = 1; void B(void) = 1; } = 1; } = 1;",
            "1:48: `B` has the number",
        ),
        (
            "program P { version V { void A(opaque) = 1; } = 1; } = 1;",
            "1:30: `A` takes or returns a type",
        ),
        ("program P { version V { void A(void) = -1; } = 1; } = 1;", "1:40: -1 is not the number"),
    ];
    for (text, expected) in cases {
        let error = error(text);
        assert!(error.starts_with(&format!("t.x:{expected}")), "{text}: {error}");
        assert!(error.contains("; "), "{error} has no remedy");
    }
}

#[test]
fn types_nest_to_a_limit() {
    let chain = |length: usize| {
        (1..length).fold("typedef int t0;".to_owned(), |mut text, index| {
            text += &format!("typedef t{} t{index};", index - 1);
            text
        })
    };
    assert!(Generator::new().rust("t.x", &chain(1000)).is_ok(), "seen from its beginning");
    let reversed: String = chain(1000).split_inclusive(';').rev().collect();
    assert!(error(&reversed).contains("nested too deep"));
}

/// Values are on the stack of a thread: four bytes of arguments must not end the process.
#[test]
fn what_is_decoded_by_value_has_a_limit() {
    let opaque = |bytes: u32| format!("struct blk {{ opaque b[{bytes}]; }};");
    let program =
        |procedure: &str| format!("program P {{ version V {{ {procedure} = 1; }} = 1; }} = 1;");
    let half = opaque(32768);
    for accepted in [
        opaque(65536),
        half.clone() + &program("blk A(blk)"),
        half.clone() + "struct l { blk all<>; };",
    ] {
        assert!(Generator::new().rust("t.x", &accepted).is_ok(), "{accepted}");
    }
    let nested = |depth: usize| {
        (1..depth).fold("struct t0 { opaque b[65536]; };".to_owned(), |text, index| {
            text + &format!("struct t{index} {{ t{} b; }};", index - 1)
        })
    };
    assert!(Generator::new().rust("t.x", &nested(4)).is_ok());
    let sums = (0..60).fold("struct t0 { int a; };".to_owned(), |text, index| {
        text + &format!("struct t{} {{ t{index} a; t{index} b; }};", index + 1)
    });
    for (refused, at) in [
        (opaque(524_288), "1:8: `blk` takes 524288 bytes"),
        (opaque(65_537), "1:8: `blk` takes 65537 bytes"),
        ("typedef hyper long_array[8193];".to_owned(), "1:15: `long_array` takes 65544 bytes"),
        (
            half.clone() + "union u switch (int i) { case 1: blk two[2]; };",
            "1:39: `u` takes 65544 bytes",
        ),
        (half + &program("blk A(blk, int)"), "1:61: `A`, with `Blk`, takes 65540 bytes"),
        (nested(5), "1:99: `t4` and the types within it take 327680 bytes"),
        (sums, "1:406: `t15` takes 131072 bytes"),
    ] {
        let problem = error(&refused);
        assert!(problem.starts_with(&format!("t.x:{at}")), "{problem}");
    }
}

#[test]
fn types_without_a_name_are_named_after_their_place() {
    let text = "struct a { struct { int x; } b; enum { ON = 1 } c<3>; union switch (int d) { case 1: int e; } f; };
        typedef enum { OFF = 0 } g;";
    let model = Generator::new().model("t.x", text).unwrap();
    let names: Vec<&str> = model.types.iter().map(|found| found.rust.as_str()).collect();
    assert_eq!(names, ["AB", "AC", "AF", "A", "G"]);
}

#[test]
fn a_list_is_told_from_other_optional_data() {
    let text = "struct node { int x; node *next; }; typedef node *list; typedef node again;
        struct uses { node one; node *any; list named; again *other; int *number; };";
    let model = Generator::new().model("t.x", text).unwrap();
    let Kind::Struct { fields, .. } = &model.types[3].kind else { panic!() };
    let types: Vec<&Ty> = fields.iter().map(|field| &field.ty).collect();
    let expected = [&Ty::Chain(0), &Ty::List(0), &Ty::Named(1), &Ty::List(0)];
    assert_eq!(types[..4], expected);
    assert!(matches!(types[4], Ty::Optional(_)));
    assert_eq!(model.rust(types[0]), "Chain<'a, Node>");
}

/// Types of the fields of the last struct of `text`.
fn fields(text: &str) -> (Model, Vec<Ty>) {
    let model = Generator::new().model("t.x", text).unwrap();
    let Kind::Struct { fields, .. } = &model.types.last().unwrap().kind else { panic!() };
    let types = fields.iter().map(|field| field.ty.clone()).collect();
    (model, types)
}

#[test]
fn types_of_c_are_words() {
    for (c, rust) in [
        ("char", "i8"),
        ("unsigned char", "UnsignedChar"),
        ("u_char", "UnsignedChar"),
        ("short", "i16"),
        ("unsigned short", "u16"),
        ("long", "i32"),
        ("unsigned long", "u32"),
        ("u_int", "u32"),
        ("u_long", "u32"),
        ("int64_t", "i64"),
        ("u_quad_t", "u64"),
        ("netobj", "Opaque<'a, 1024>"),
    ] {
        let (model, fields) = fields(&format!("struct s {{ {c} x; }};"));
        assert_eq!(model.rust(&fields[0]), rust, "{c}");
    }
    let (model, own) = fields(
        "struct u_int { hyper x; }; const AUTH_SYS = 7; struct s { u_int x; opaque y[AUTH_SYS]; opaque z[RPCSEC_GSS]; };",
    );
    let rust: Vec<String> = own.iter().map(|ty| model.rust(ty)).collect();
    assert_eq!(rust, ["UInt", "[u8; AUTH_SYS as usize]", "[u8; 6]"], "a definition comes first");
}

#[test]
fn optional_data_of_a_type_that_contains_itself_are_branches() {
    let (_, tree) = fields("struct t { int v; t *left; t *right; };");
    assert_eq!(tree[1..], [Ty::Branch(0), Ty::Branch(0)]);
    let (_, link_first) = fields("struct n { n *next; int v; };");
    assert_eq!(link_first[0], Ty::Branch(0));
    let (_, mutual) = fields("struct a { int v; b *b; }; struct b { int v; a all<3>; };");
    assert!(matches!(&mutual[1], Ty::Counted(item, _) if **item == Ty::Named(0)));
    let (_, list) = fields("struct t { t *first; int v; }; struct n { t tree; n *next; };");
    assert_eq!(list, [Ty::Named(0)], "a list of trees is a list");
    let exact = "struct b { int v; a *a; }; struct a { int v; b *b; };";
    assert!(rust(exact).contains("PartialEq, Eq, spinrpc_xdr::Xdr"));
    let floating = "struct b { float v; a *a; }; struct a { int v; b *b; };";
    assert!(!rust(floating).contains("Eq, Eq"), "neither is without the float");
}

#[test]
fn names_that_are_taken_are_changed() {
    for (text, expected) in [
        ("struct a_b { int x; }; struct aB { int x; };", "pub struct AB_ {"),
        ("struct a { int xY; int x_y; };", "pub x_y_: i32,"),
        ("enum e { A_B = 1, aB = 2 };", "AB_ = 2,"),
        ("const a_b = 1; const aB = 2;", "pub const A_B_: u32 = 2;"),
        ("union u switch (int i) { case 1: int a; default: void; };", "Default(i32)"),
        (
            "const DEFAULT = 1; union u switch (int i) { case DEFAULT: int a; default: void; };",
            "Default_(i32)",
        ),
        ("struct option { int x; };", "pub struct Option_ {"),
        ("const A = 4; struct a { opaque x<A>; };", "pub x: spinrpc_xdr::Opaque<'a, { A }>,"),
        ("program P { version CORE { int NONE(int) = 1; } = 1; } = 1;", "pub mod core_ {"),
        ("program P { version V { int NONE(int) = 1; } = 1; } = 1;", "pub struct None_;"),
        ("program P { version V { int A_B(int) = 1; int aB(int) = 2; } = 1; } = 1;", "fn a_b_("),
    ] {
        assert!(rust(text).contains(expected), "{text}");
    }
}

#[test]
fn a_version_whose_procedure_0_has_arguments_or_results_has_no_async_stubs() {
    let has_stubs = |null: &str| {
        let procedures = format!("{null} = 0; int B(int) = 1;");
        rust(&format!("program P {{ version V {{ {procedures} }} = 1; }} = 1;")).contains("AsyncS")
    };
    assert!(has_stubs("void A(void)"));
    assert!(!has_stubs("void A(int)"));
    assert!(!has_stubs("int A(void)"));
}

#[test]
fn enumerators_of_one_value_are_a_variant_and_constants() {
    let rust = rust("enum e { OLD = 0, NEW = 0 }; union u switch (e e) { case NEW: int i; };");
    for expected in
        ["Old = 0,", "pub const New: Self = Self::Old;", "#[xdr(case = E::New)]\n    New(i32)"]
    {
        assert!(rust.contains(expected), "{rust}");
    }
    assert!(!rust.contains("New = 0"), "{rust}");
}

#[test]
fn constants_are_strings_and_numbers_of_procedures_too() {
    let text = "const NAME = \"a b\"; const LAST = B; program P { version V { int B(int) = 7; } = 1; } = 1;";
    let rust = rust(text);
    for expected in ["pub const NAME: &str = \"a b\";", "pub const LAST: u32 = 7;"] {
        assert!(rust.contains(expected), "{rust}");
    }
}

#[test]
fn arguments_may_be_strings_and_have_names() {
    let text = "program P { version V { string A(string name, int number) = 1; } = 1; } = 1;";
    let model = Generator::new().model("t.x", text).unwrap();
    let procedure = &model.programs[0].versions[0].procedures[0];
    let text = Ty::Text(Bound::NONE);
    assert_eq!(procedure.arguments, [text.clone(), Ty::Basic(Basic::Int)]);
    assert_eq!(procedure.result, Some(text));
}

#[test]
fn what_is_defined_again_word_by_word_counts_once() {
    let once = "struct a { int x; };";
    assert_eq!(rust(&format!("{once}\n{once}")), rust(once));
}

#[test]
fn lines_of_the_preprocessor_place_mistakes() {
    let text = "# 1 \"a.x\"\ntypedef int a;\n# 7 \"b.x\" 2\n\ntypedef b c;\n";
    assert!(error(text).starts_with("b.x:8:9: there is no type `b`"), "{}", error(text));
}

#[test]
fn declarations_are_annotated_from_outside_of_the_file() {
    let text = "struct a { opaque data<9>; string name<8>; }; typedef string path<>;";
    let generator = Generator::new().ddp("a.data").bytes("a.name").bytes("path");
    let rust = generator.rust("t.x", text).unwrap();
    for expected in ["::Placed<'a, 9>", "name: spinrpc_xdr::Opaque<'a, 8>", "::Opaque<'a>;"] {
        assert!(rust.contains(expected), "{rust}");
    }
    let error = generator.ddp("b.data").rust("t.x", text).unwrap_err().to_string();
    assert!(error.contains("no declaration `b.data` to annotate"), "{error}");
}

#[test]
fn a_type_may_have_the_name_of_a_type_of_the_library() {
    let rust = rust("typedef string text<8>; struct list { text a; opaque b<>; };");
    for expected in ["type Text<'a> = spinrpc_xdr::Text<'a, 8>", "b: spinrpc_xdr::Opaque<'a>"] {
        assert!(rust.contains(expected), "{rust}");
    }
}

proptest! {
    /// Whatever the words, the generator answers.
    #[test]
    fn any_sequence_of_words_is_refused_or_generated(
        words in vec(prop::sample::select(vec![
            "const", "typedef", "enum", "struct", "union", "switch", "case", "default", "program",
            "version", "opaque", "string", "int", "unsigned", "bool", "void", "a", "b", "A", "B",
            "0", "1", "-1", "0x10", "{", "}", "(", ")", "[", "]", "<", ">", ";", ":", ",", "=", "*",
            "/*@ ddp */", "/*@ bytes */", "/* */", "%\n", "TRUE", "char", "long", "u_int", "\"b\"",
            "\n# 7 \"b.x\"\n",
        ]), 0..40)
    ) {
        let _ = Generator::new().rust("t.x", &words.join(" "));
    }

    #[test]
    fn any_text_is_refused_or_generated(text in ".*") {
        let _ = Generator::new().rust("t.x", &text);
    }
}
