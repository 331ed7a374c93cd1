// What the GGUF reader reads from sound files: every type of value, every width, strings of any bytes, tensors.
#include <math.h>
#include <stdlib.h>

#include "formats/gguf.h"
#include "tests/support/check.h"
#include "tests/support/gguf_builder.h"

// A model in memory and its reader.
struct model {
    struct bytes file;
    struct atsi_gguf *gguf;
};

static struct model open_built(struct gguf_builder *g) {
    struct atsi_error err;
    struct model m = {.file = gb_finish(g)};
    gb_free(g);
    check_ok(atsi_gguf_open_memory(&m.gguf, m.file.data, m.file.size, "built", &err), err);
    return m;
}

static void close_model(struct model *m) {
    atsi_gguf_close(m->gguf);
    bytes_free(&m->file);
}

static void test_base(void **state) {
    (void)state;
    struct gguf_builder g;
    gb_base(&g);
    struct model m = open_built(&g);
    struct atsi_error err;
    assert_int_equal(atsi_gguf_version(m.gguf), 3);
    assert_int_equal(atsi_gguf_n_parts(m.gguf), 1);
    assert_int_equal(atsi_gguf_size_bytes(m.gguf), m.file.size);
    assert_int_equal(atsi_gguf_n_kv(m.gguf), 17);
    assert_true(atsi_str_is(atsi_gguf_kv_at(m.gguf, 0)->key, "general.architecture"));
    assert_null(atsi_gguf_find(m.gguf, "absent"));
    assert_int_equal(atsi_gguf_find(m.gguf, "nested")->type, ATSI_GGUF_ARRAY);

    struct atsi_str name;
    check_ok(atsi_gguf_str(m.gguf, "general.architecture", &name, &err), err);
    assert_true(atsi_str_is(name, "llama"));
    double real;
    check_ok(atsi_gguf_f64(m.gguf, "real", &real, &err), err);
    assert_true(real == 0.5);
    check_ok(atsi_gguf_f64(m.gguf, "wide.real", &real, &err), err);
    assert_true(real == 1e-100);
    check_ok(atsi_gguf_f64(m.gguf, "wide.signed", &real, &err), err);
    assert_true(real == -5e9);
    uint64_t wide;
    check_ok(atsi_gguf_u64(m.gguf, "wide.unsigned", &wide, &err), err);
    assert_true(wide == UINT64_MAX);
    bool flag;
    check_ok(atsi_gguf_bool_or(m.gguf, "flag", false, &flag, &err), err);
    assert_true(flag);
    close_model(&m);
}

static void test_tensors(void **state) {
    (void)state;
    struct gguf_builder g;
    gb_base(&g);
    struct model m = open_built(&g);
    static const struct {
        const char *name;
        uint32_t dtype, n_dims;
        uint64_t ne[4], size;
        uint8_t fill;
    } want[] = {{"token_embd.weight", ATSI_F32, 2, {8, 3, 1, 1}, 96, 0x11},
                {"blk.0.attn_q.weight", ATSI_Q4_0, 2, {32, 2, 1, 1}, 36, 0x22},
                {"blk.0.ffn_up_exps.weight", ATSI_MXFP4, 3, {32, 2, 2, 1}, 68, 0x33},
                {"output_norm.weight", ATSI_F32, 1, {8, 1, 1, 1}, 32, 0x44}};
    assert_int_equal(atsi_gguf_n_tensors(m.gguf), 4);
    for (uint64_t i = 0; i < 4; i++) {
        const struct atsi_gguf_tensor *t = atsi_gguf_tensor_at(m.gguf, i);
        assert_ptr_equal(atsi_gguf_find_tensor(m.gguf, want[i].name), t);
        assert_true(atsi_str_is(t->name, want[i].name));
        assert_int_equal(t->dtype, want[i].dtype);
        assert_int_equal(t->n_dims, want[i].n_dims);
        assert_memory_equal(t->ne, want[i].ne, sizeof t->ne);
        assert_int_equal(t->size_bytes, want[i].size);
        assert_ptr_equal(t->data, m.file.data + t->file_offset);
        for (uint64_t k = 0; k < t->size_bytes; k++) assert_int_equal(t->data[k], want[i].fill);
        atsi_gguf_prefetch(m.gguf, t); // in memory: nothing happens
        atsi_gguf_drop(m.gguf, t);
    }
    assert_null(atsi_gguf_find_tensor(m.gguf, "output.weight"));
    close_model(&m);
}

// The same value is the same whatever width it is stored in; what is no integer is refused.
static void test_integer_widths(void **state) {
    (void)state;
    static const uint32_t types[] = {GB_U8, GB_I8, GB_U16, GB_I16, GB_U32, GB_I32, GB_U64, GB_I64};
    struct atsi_error err;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct gguf_builder g;
        gb_init(&g);
        gb_int(&g, "n", types[i], 42);
        gb_int(&g, "negative", types[i], (uint64_t)-1);
        struct model m = open_built(&g);
        uint32_t narrow = 0;
        uint64_t wide = 0;
        double real = 0;
        check_ok(atsi_gguf_u32(m.gguf, "n", &narrow, &err), err);
        check_ok(atsi_gguf_u64(m.gguf, "n", &wide, &err), err);
        check_ok(atsi_gguf_f64(m.gguf, "n", &real, &err), err);
        assert_true(narrow == 42 && wide == 42 && real == 42);
        bool is_signed = types[i] == GB_I8 || types[i] == GB_I16 || types[i] == GB_I32 || types[i] == GB_I64;
        if (is_signed)
            check_refused(atsi_gguf_u64(m.gguf, "negative", &wide, &err), err, "negative", "0 or more", "-1");
        else
            check_ok(atsi_gguf_u64(m.gguf, "negative", &wide, &err), err);
        close_model(&m);
    }
}

static void test_wrong_scalars(void **state) {
    (void)state;
    struct gguf_builder g;
    gb_init(&g);
    gb_f32(&g, "f32", 4);
    gb_f64(&g, "f64", 4);
    gb_str(&g, "text", "4");
    gb_int(&g, "bool", GB_BOOL, 1);
    gb_int(&g, "big", GB_U64, UINT64_C(1) << 32);
    gb_int(&g, "two", GB_U8, 2);
    gb_f32(&g, "nan", NAN);
    gb_f64(&g, "inf", INFINITY);
    struct model m = open_built(&g);
    struct atsi_error err;
    uint32_t n;
    double real;
    bool flag;
    struct atsi_str text;
    check_refused(atsi_gguf_u32(m.gguf, "f32", &n, &err), err, "built: key \"f32\" at offset", "expected an integer",
                  "found f32");
    check_refused(atsi_gguf_u32_or(m.gguf, "f64", 1, &n, &err), err, "\"f64\"", "found f64");
    check_refused(atsi_gguf_u32(m.gguf, "text", &n, &err), err, "\"text\"", "found string");
    check_refused(atsi_gguf_u32(m.gguf, "bool", &n, &err), err, "\"bool\"", "found bool");
    check_refused(atsi_gguf_u32(m.gguf, "big", &n, &err), err, "\"big\"", "4294967295", "4294967296");
    check_refused(atsi_gguf_u32(m.gguf, "none", &n, &err), err, "built", "\"none\"", "missing");
    check_refused(atsi_gguf_bool_or(m.gguf, "two", false, &flag, &err), err, "\"two\"", "bool");
    check_refused(atsi_gguf_bool_or(m.gguf, "text", false, &flag, &err), err, "\"text\"");
    check_refused(atsi_gguf_f64(m.gguf, "nan", &real, &err), err, "\"nan\"", "finite");
    check_refused(atsi_gguf_f64_or(m.gguf, "inf", 1, &real, &err), err, "\"inf\"", "finite");
    check_refused(atsi_gguf_f64(m.gguf, "bool", &real, &err), err, "\"bool\"", "number");
    check_refused(atsi_gguf_f64(m.gguf, "none", &real, &err), err, "missing");
    check_refused(atsi_gguf_str(m.gguf, "two", &text, &err), err, "\"two\"", "string", "u8");
    check_refused(atsi_gguf_str(m.gguf, "none", &text, &err), err, "missing");
    close_model(&m);
}

static void test_fallbacks(void **state) {
    (void)state;
    struct gguf_builder g;
    gb_init(&g);
    struct model m = open_built(&g);
    struct atsi_error err;
    uint32_t n = 0;
    double real = 0;
    bool flag = false;
    struct atsi_str text = {"x", 1};
    struct atsi_gguf_array array;
    check_ok(atsi_gguf_u32_or(m.gguf, "k", 7, &n, &err), err);
    check_ok(atsi_gguf_f64_or(m.gguf, "k", 9, &real, &err), err);
    check_ok(atsi_gguf_bool_or(m.gguf, "k", true, &flag, &err), err);
    check_ok(atsi_gguf_str_or_none(m.gguf, "k", &text, &err), err);
    check_ok(atsi_gguf_array(m.gguf, "k", &array, &err), err);
    assert_true(n == 7 && real == 9 && flag && text.data == NULL && array.n == 0);
    close_model(&m);
}

static void test_arrays(void **state) {
    (void)state;
    static const uint32_t types[] = {GB_U8, GB_I8, GB_U16, GB_I16, GB_U32, GB_I32, GB_U64, GB_I64};
    struct atsi_error err;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) { // token_type as u32, scores as u8: widened
        struct gguf_builder g;
        gb_init(&g);
        gb_ints(&g, "a", types[i], 3, (const int64_t[]){1, 0, 100});
        struct model m = open_built(&g);
        int64_t *ints;
        float *floats;
        uint64_t n;
        check_ok(atsi_gguf_ints(m.gguf, "a", 3, &ints, &n, &err), err);
        check_ok(atsi_gguf_floats(m.gguf, "a", ATSI_GGUF_ANY_LENGTH, &floats, &n, &err), err);
        assert_true(n == 3 && ints[0] == 1 && ints[1] == 0 && ints[2] == 100 && floats[2] == 100.0f);
        free(ints);
        free(floats);
        check_refused(atsi_gguf_ints(m.gguf, "a", 4, &ints, &n, &err), err, "\"a\"", "expected 4", "found 3");
        check_refused(atsi_gguf_floats(m.gguf, "a", 2, &floats, &n, &err), err, "expected 2", "found 3");
        close_model(&m);
    }
}

static void test_array_types(void **state) {
    (void)state;
    struct gguf_builder g;
    gb_base(&g);
    gb_array(&g, "flags", GB_BOOL, 2);
    bytes_le(&g.kv, 0x0001, 2);
    gb_array(&g, "reals", GB_F64, 1);
    bytes_append(&g.kv, &(double){0.125}, 8);
    gb_array(&g, "empty", GB_STR, 0);
    gb_ints(&g, "huge", GB_U64, 1, (const int64_t[]){-1});
    struct model m = open_built(&g);
    struct atsi_error err;
    int64_t *ints;
    float *floats;
    struct atsi_str *strings;
    uint64_t n;
    check_ok(atsi_gguf_ints(m.gguf, "flags", 2, &ints, &n, &err), err);
    assert_true(ints[0] == 1 && ints[1] == 0);
    free(ints);
    check_ok(atsi_gguf_floats(m.gguf, "reals", 1, &floats, &n, &err), err);
    assert_true(floats[0] == 0.125f);
    free(floats);
    check_ok(atsi_gguf_floats(m.gguf, "scores", 3, &floats, &n, &err), err);
    assert_true(floats[0] == 1 && floats[1] == -2 && floats[2] == 0.25f);
    free(floats);
    check_ok(atsi_gguf_strings(m.gguf, "tokens", 3, &strings, &n, &err), err);
    assert_true(atsi_str_is(strings[0], "a") && atsi_str_is(strings[1], "") && atsi_str_is(strings[2], "bc"));
    free(strings);
    check_ok(atsi_gguf_strings(m.gguf, "empty", ATSI_GGUF_ANY_LENGTH, &strings, &n, &err), err);
    assert_true(n == 0);
    free(strings);

    check_refused(atsi_gguf_ints(m.gguf, "scores", 3, &ints, &n, &err), err, "\"scores\"", "integers", "f32");
    check_refused(atsi_gguf_ints(m.gguf, "huge", 1, &ints, &n, &err), err, "\"huge\"", "integers", "u64");
    check_refused(atsi_gguf_ints(m.gguf, "nested", 2, &ints, &n, &err), err, "\"nested\"", "array");
    check_refused(atsi_gguf_floats(m.gguf, "tokens", 3, &floats, &n, &err), err, "\"tokens\"", "numbers", "string");
    check_refused(atsi_gguf_strings(m.gguf, "scores", 3, &strings, &n, &err), err, "\"scores\"", "strings", "f32");
    check_refused(atsi_gguf_strings(m.gguf, "real", 1, &strings, &n, &err), err, "\"real\"", "array", "f32");
    check_refused(atsi_gguf_strings(m.gguf, "none", 1, &strings, &n, &err), err, "\"none\"", "missing");
    close_model(&m);
}

// A value per layer is an array or a scalar, and may count the blocks for multi-token prediction.
static void test_per_layer(void **state) {
    (void)state;
    struct gguf_builder g;
    gb_init(&g);
    gb_ints(&g, "array", GB_U16, 3, (const int64_t[]){2, 1, 9});
    gb_int(&g, "scalar", GB_I64, 5);
    gb_ints(&g, "negative", GB_I32, 3, (const int64_t[]){2, -1, 0});
    gb_floats(&g, "reals", 3, (const float[]){1, 1, 1});
    struct model m = open_built(&g);
    struct atsi_error err;
    uint32_t out[3] = {0};
    check_ok(atsi_gguf_per_layer_u32(m.gguf, "array", 3, 0, NULL, out, &err), err);
    assert_true(out[0] == 2 && out[1] == 1 && out[2] == 9);
    out[2] = 77;
    check_ok(atsi_gguf_per_layer_u32(m.gguf, "array", 2, 1, NULL, out, &err), err);
    assert_true(out[0] == 2 && out[1] == 1 && out[2] == 77);
    check_ok(atsi_gguf_per_layer_u32(m.gguf, "scalar", 3, 0, NULL, out, &err), err);
    assert_true(out[0] == 5 && out[2] == 5);
    check_ok(atsi_gguf_per_layer_u32(m.gguf, "none", 3, 0, &(uint32_t){8}, out, &err), err);
    assert_true(out[0] == 8 && out[2] == 8);
    check_refused(atsi_gguf_per_layer_u32(m.gguf, "none", 3, 0, NULL, out, &err), err, "missing");
    check_refused(atsi_gguf_per_layer_u32(m.gguf, "array", 2, 0, NULL, out, &err), err, "\"array\"", "2 layers",
                  "found 3");
    check_refused(atsi_gguf_per_layer_u32(m.gguf, "array", 4, 1, NULL, out, &err), err, "4 or 5 layers", "found 3");
    check_refused(atsi_gguf_per_layer_u32(m.gguf, "negative", 3, 0, NULL, out, &err), err, "element 1", "-1");
    check_refused(atsi_gguf_per_layer_u32(m.gguf, "reals", 3, 0, NULL, out, &err), err, "integers", "f32");
    close_model(&m);
}

// Strings are bytes.
static void test_any_bytes(void **state) {
    (void)state;
    struct gguf_builder g;
    gb_init(&g);
    gb_bytes(&g, "general.name", "a\nb\x1b[31m\0c", 10);
    gb_key(&g, "\xFF\xFE\0key", 6, GB_U8);
    bytes_le(&g.kv, 1, 1);
    gb_key(&g, "", 0, GB_U8);
    bytes_le(&g.kv, 2, 1);
    gb_array(&g, "tokens", GB_STR, 4);
    gb_put_str(&g, "", 0);
    gb_put_str(&g, "\0", 1);
    gb_put_str(&g, "\xFF\xFE", 2);
    gb_put_str(&g, "\n", 1);
    gb_tensor_info(&g, "t\x1b\0\xFF", 4, 0, 1, (const uint64_t[]){8}, 0);
    bytes_fill(&g.data, 0, 32);
    struct model m = open_built(&g);
    struct atsi_error err;
    struct atsi_str name, *tokens;
    uint64_t n;
    check_ok(atsi_gguf_str(m.gguf, "general.name", &name, &err), err);
    assert_int_equal(name.size, 10);
    assert_memory_equal(name.data, "a\nb\x1b[31m\0c", 10);
    check_ok(atsi_gguf_strings(m.gguf, "tokens", 4, &tokens, &n, &err), err);
    assert_true(tokens[0].size == 0 && tokens[1].size == 1 && tokens[1].data[0] == 0 && tokens[2].size == 2);
    free(tokens);
    assert_int_equal(atsi_gguf_tensor_at(m.gguf, 0)->name.size, 4);
    uint32_t two = 0;
    check_ok(atsi_gguf_u32(m.gguf, "", &two, &err), err);
    assert_int_equal(two, 2);
    close_model(&m);
}

// A message about such a name is still one printable line.
static void test_messages_are_safe(void **state) {
    (void)state;
    struct gguf_builder g;
    struct atsi_error err;
    struct atsi_gguf *gguf;
    gb_init(&g);
    gb_tensor_info(&g, "t\x1b]0;x\a\n\xFF", 9, 4, 1, (const uint64_t[]){8}, 0);
    struct bytes file = gb_finish(&g);
    gb_free(&g);
    check_refused(atsi_gguf_open_memory(&gguf, file.data, file.size, "bad\nname", &err), err, "bad\\x0Aname",
                  "t\\x1B]0;x\\x07\\x0A\\xFF", "type 4");
    assert_null(gguf);
    bytes_free(&file);
}

static void test_version_2(void **state) {
    (void)state;
    struct gguf_builder g;
    gb_base(&g);
    g.version = 2;
    struct model m = open_built(&g);
    assert_int_equal(atsi_gguf_version(m.gguf), 2);
    assert_int_equal(atsi_gguf_n_tensors(m.gguf), 4);
    close_model(&m);
}

// Sane alignments: any integer type, also after other keys; the data moves with it.
static void test_alignment(void **state) {
    (void)state;
    static const uint32_t types[] = {GB_U8, GB_I16, GB_U32, GB_I32, GB_U64, GB_I64};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (uint64_t alignment = 8; alignment <= (types[i] == GB_U8 ? 128u : 16384u); alignment *= 2) {
            struct gguf_builder g;
            gb_init(&g);
            gb_str(&g, "general.architecture", "llama");
            gb_int(&g, "general.alignment", types[i], alignment);
            g.alignment = alignment;
            gb_tensor(&g, "a", 0, 1, (const uint64_t[]){1}, 4, 1);
            gb_tensor(&g, "b", 0, 1, (const uint64_t[]){1}, 4, 2);
            struct model m = open_built(&g);
            assert_int_equal(atsi_gguf_find_tensor(m.gguf, "a")->data[0], 1);
            assert_int_equal(atsi_gguf_find_tensor(m.gguf, "b")->data[0], 2);
            assert_int_equal(atsi_gguf_find_tensor(m.gguf, "b")->file_offset % alignment, 0);
            close_model(&m);
        }
}

static void test_vocabulary_only(void **state) {
    (void)state;
    struct gguf_builder g;
    gb_init(&g);
    gb_str(&g, "tokenizer.ggml.model", "gpt2");
    struct bytes file = gb_finish(&g);
    gb_free(&g);
    struct atsi_gguf *gguf;
    struct atsi_error err;
    size_t unpadded = 24 + 8 + 20 + 4 + 8 + 4; // without the padding that only tensor data needs
    check_ok(atsi_gguf_open_memory(&gguf, file.data, unpadded, "vocab", &err), err);
    assert_int_equal(atsi_gguf_n_tensors(gguf), 0);
    uint64_t hash;
    check_ok(atsi_gguf_identity_hash(gguf, &hash, &err), err);
    atsi_gguf_close(gguf);
    bytes_free(&file);
}

static void test_identity(void **state) {
    (void)state;
    struct gguf_builder g;
    gb_base(&g);
    struct bytes file = gb_finish(&g);
    gb_free(&g);
    uint64_t hashes[3];
    for (int i = 0; i < 3; i++) { // as built; a bit of metadata; a bit in the middle of the last tensor
        if (i == 1) file.data[64] ^= 1;
        if (i == 2) file.data[file.size - 16] ^= 1;
        struct atsi_gguf *gguf;
        struct atsi_error err;
        check_ok(atsi_gguf_open_memory(&gguf, file.data, file.size, "x", &err), err);
        check_ok(atsi_gguf_identity_hash(gguf, &hashes[i], &err), err);
        atsi_gguf_close(gguf);
    }
    assert_true(hashes[0] != hashes[1] && hashes[1] != hashes[2]);
    bytes_free(&file);
    atsi_gguf_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_integer_widths),
        cmocka_unit_test(test_wrong_scalars),
        cmocka_unit_test(test_fallbacks),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_array_types),
        cmocka_unit_test(test_per_layer),
        cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_messages_are_safe),
        cmocka_unit_test(test_version_2),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_vocabulary_only),
        cmocka_unit_test(test_identity),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
