#include "hpcdl/io/config_table.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/rng.h"

namespace hpcdl::io {

enum class Shade { light, dark };
template <> struct EnumNames<Shade> {
  static constexpr std::pair<Shade, std::string_view> values[] = {{Shade::light, "light"}, {Shade::dark, "dark"}};
};

namespace {

struct Inner {
  std::int64_t bytes = 1 << 20;
  double every = 60;
  std::optional<float> clip;
  void visit(auto&& f) {
    f("bytes", bytes, "bucket size", {.min = 1, .unit = Unit::bytes});
    f("every", every, "time between saves", {.min = 0, .unit = Unit::seconds});
    f("clip", clip, "norm to clip at", {.min = 0});
  }
};
struct Outer {
  bool flag = false;
  int steps = 100;
  std::uint64_t seed = 1;
  float rate = 0.1f;
  std::string name = "a \"b\"\n\x01";
  fs::path out = "runs";
  Shade shade = Shade::light;
  std::vector<std::string> files;
  Inner inner_part;
  void visit(auto&& f) {
    f("flag", flag, "a switch");
    f("steps", steps, "steps to take", {.min = 1, .max = 1e9});
    f("seed", seed, "seed of everything random");
    f("rate", rate, "learning rate");
    f("name", name, "a name");
    f("out", out, "where to write");
    f("shade", shade, "a colour");
    f("files", files, "inputs");
    f.section("inner_part", inner_part);
  }
};
struct Root {
  Outer train;
  std::string top = "t";
  void visit(auto&& f) {
    f.section("train", train);
    f("top", top, "a key without section");
  }
};

template <class F> std::string error_of(F&& f) {
  try {
    f();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "no error";
}
std::string toml_error(const std::string& text) {
  Root r;
  ConfigTable t(r);
  return error_of([&] { t.apply_toml(text, "run.toml"); });
}
std::string override_error(const std::string& text) {
  Root r;
  ConfigTable t(r);
  return error_of([&] { t.apply_override(text); });
}
void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "expected: " << part << "\nfound: " << text;
}

TEST(config, reads_every_type_from_toml) {
  Root r;
  ConfigTable t(r);
  t.apply_toml(
      "top = 'x'\n[train]\nflag = true\nsteps = 1.5e3\nseed = \"18446744073709551615\"\nrate = 3\nname = 'n'\nout = "
      "'/tmp/q'\n"
      "shade = 'dark'\nfiles = ['a', 'b']\n[train.inner-part]\nbytes = '25MiB'\nevery = '10m'\nclip = 1\n",
      "run.toml");
  EXPECT_EQ(r.top, "x");
  EXPECT_TRUE(r.train.flag);
  EXPECT_EQ(r.train.steps, 1500);
  EXPECT_EQ(r.train.seed, UINT64_MAX);
  EXPECT_EQ(r.train.rate, 3.0f);
  EXPECT_EQ(r.train.out, "/tmp/q");
  EXPECT_EQ(r.train.shade, Shade::dark);
  EXPECT_EQ(r.train.files, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(r.train.inner_part.bytes, 25 << 20);
  EXPECT_EQ(r.train.inner_part.every, 600);
  EXPECT_EQ(r.train.inner_part.clip, 1.0f);
}

TEST(config, reads_every_type_from_text) {
  Root r;
  ConfigTable t(r);
  for (const char* a :
       {"--train.flag", "--train.steps=1_000", "train.seed=18446744073709551615", "--train.rate=1e-3",
        "--train.name=x=y", "--train.out=o", "--train.shade=dark", "--train.files=a,b,c",
        "--train.inner-part.bytes=16G", "--train.inner_part.every=500ms", "--train.inner_part.clip=0.5"})
    t.apply_override(a);
  EXPECT_TRUE(r.train.flag);
  EXPECT_EQ(r.train.steps, 1000);
  EXPECT_EQ(r.train.seed, UINT64_MAX);
  EXPECT_EQ(r.train.rate, 1e-3f);
  EXPECT_EQ(r.train.name, "x=y");
  EXPECT_EQ(r.train.files.size(), 3u);
  EXPECT_EQ(r.train.inner_part.bytes, std::int64_t{16} << 30);
  EXPECT_EQ(r.train.inner_part.every, 0.5);
  EXPECT_EQ(r.train.inner_part.clip, 0.5f);
  t.apply_override("--train.files=[\"a,b\", \"c\"]");
  EXPECT_EQ(r.train.files, (std::vector<std::string>{"a,b", "c"}));
  t.apply_override("--train.inner_part.clip=none");
  EXPECT_FALSE(r.train.inner_part.clip);
  t.apply_override("--train.flag=off");
  EXPECT_FALSE(r.train.flag);
}

struct Often {
  Every every = Every::time(600);
  void visit(auto&& f) { f("every", every, "between saves", {.min = 0, .max = 1e12}); }
};

TEST(config, steps_and_times_have_one_notation) {
  const auto read = [](const std::string& text) {
    Often o;
    ConfigTable t(o);
    t.apply_override("every=" + text);
    Often again;
    ConfigTable(again).apply_toml(t.to_toml(), "again.toml");
    EXPECT_EQ(o.every, again.every) << t.to_toml();
    return o.every;
  };
  EXPECT_EQ(read("500"), Every(500));
  EXPECT_EQ(read("1_000"), Every(1000));
  EXPECT_EQ(read("1e3"), Every(1000));
  EXPECT_TRUE(read("0").never());
  EXPECT_TRUE(read("0s").never());
  EXPECT_EQ(read("10m"), Every::time(600));
  EXPECT_EQ(read("90s"), Every::time(90));
  EXPECT_EQ(read("1.5h"), Every::time(5400));
  EXPECT_EQ(read("2d"), Every::time(172800));
  EXPECT_EQ(read("250ms"), Every::time(0.25));
  const auto toml = [](Every every) {
    Often o{every};
    return ConfigTable(o).find("every")->toml();
  };
  EXPECT_EQ(toml(500), "500");
  EXPECT_EQ(toml(Every::time(600)), "\"10m\"");
  EXPECT_EQ(toml(Every::time(7200)), "\"2h\"");
  EXPECT_EQ(toml(Every::time(90)), "\"90s\"");
  for (const char* wrong : {"-1", "-10m", "10 minutes", "1.5", "m", "", "1e13", "inf", "infs", "nans"}) {
    Often o;
    ConfigTable t(o);
    const auto error = error_of([&] { t.apply_override(std::string("every=") + wrong); });
    expect_part(error, "a number of steps such as 500, or a time such as 10m or 2h; 0: never");
  }
  Often o;
  ConfigTable t(o);
  t.apply_toml("every = 200\n", "a.toml");
  EXPECT_EQ(o.every, Every(200));
  t.apply_toml("every = '5m'\n", "a.toml");
  EXPECT_EQ(o.every, Every::time(300));
  EXPECT_EQ(t.schema().at("properties").at("every").at("type"), Json::array({"integer", "string"}));
}

TEST(config, precedence_and_origins) {
  const TempFolder tmp;
  write_file_atomic(tmp / "a.toml", "[train]\nsteps = 1\nseed = 1\nrate = 1\nname = 'a'\n");
  write_file_atomic(tmp / "b.toml", "[train]\n\nseed = 2\nrate = 2\nname = 'b'\n");
  Root r;
  ConfigTable t(r);
  ::setenv("HPCDL_TRAIN_RATE", "3", 1);
  ::setenv("HPCDL_TRAIN_NAME", "c", 1);
  t.load({tmp / "a.toml", tmp / "b.toml"}, {"--train.name=d"});
  ::unsetenv("HPCDL_TRAIN_RATE");
  ::unsetenv("HPCDL_TRAIN_NAME");
  EXPECT_EQ(r.train.steps, 1);
  EXPECT_EQ(r.train.seed, 2u);
  EXPECT_EQ(r.train.rate, 3);
  EXPECT_EQ(r.train.name, "d");
  EXPECT_TRUE(t.find("train.steps")->origin.ends_with("a.toml:2"));
  EXPECT_TRUE(t.find("train.seed")->origin.ends_with("b.toml:3"));
  EXPECT_EQ(t.find("train.rate")->origin, "HPCDL_TRAIN_RATE");
  EXPECT_EQ(t.find("train.name")->origin, "--train.name");
  EXPECT_EQ(t.find("train.flag")->origin, "default");
  expect_part(t.print_origins(), "# HPCDL_TRAIN_RATE");
}

TEST(config, unknown_keys_name_the_nearest) {
  expect_part(toml_error("[train]\n\nstepz = 3\n"),
              "run.toml:3: unknown key \"train.stepz\"; did you mean 'train.steps'?");
  expect_part(toml_error("[trian]\nsteps = 3\n"), "run.toml:1: unknown key \"trian\"; did you mean 'train'?");
  expect_part(toml_error("[other.thing]\nx = 3\n"), "unknown key \"other\"");
  expect_part(override_error("--train.inner-part.byte=3"), "did you mean 'train.inner_part.bytes'?");
  expect_part(override_error("--steps=3"), "did you mean 'train.steps'?");
  EXPECT_EQ(override_error("--zzzzzzzzzzz"), "[config] unknown key --zzzzzzzzzzz");
  expect_part(override_error(""), "unknown key");
  EXPECT_EQ(override_error("--=3"), "[config] unknown key --");
  EXPECT_EQ(override_error("-x"), "[config] unknown option -x; keys of the config are set by --SECTION.KEY=VALUE");
}

TEST(config, unknown_variables_name_the_nearest) {
  Root r;
  const ConfigTable t(r);
  const std::vector<std::string> others = {"HPCDL_THREADS"};
  const auto unread = [&](const std::string& name) { return t.unread_variables({name}, others); };
  for (const auto& [wrong, right] :
       {std::pair("HPCDL_TRIAN_STEPS", "HPCDL_TRAIN_STEPS"),
        std::pair("HPCDL_TRAIN_INNER_PART_BYTE", "HPCDL_TRAIN_INNER_PART_BYTES"),
        std::pair("HPCDL_STEPS", "HPCDL_TRAIN_STEPS"), std::pair("HPCDL_THRAEDS", "HPCDL_THREADS")}) {
    ASSERT_EQ(unread(wrong).size(), 1u) << wrong;
    expect_part(unread(wrong)[0], std::string(wrong) + " is set");
    expect_part(unread(wrong)[0], std::string("did you mean ") + right + "?");
  }
  EXPECT_EQ(unread("HPCDL_ZZZZZZZZZZZ").at(0).find("did you mean"), std::string::npos);
  for (const auto& f : t.fields()) {
    std::string name = "HPCDL_" + f.key;
    for (char& c : name) c = c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    EXPECT_EQ(unread(name).size(), 0u) << name;
  }
  for (const char* fine : {"HPCDL_THREADS", "PATH", "XHPCDL_TRIAN_STEPS"}) EXPECT_EQ(unread(fine).size(), 0u) << fine;
}

TEST(config, wrong_types_say_expected_and_found) {
  expect_part(toml_error("[train]\nsteps = 'many'\n"),
              "run.toml:2: train.steps: expected an integer >= 1 and <= 1000000000, found the string \"many\"");
  expect_part(toml_error("[train]\nsteps = 1.5\n"), "expected an integer >= 1 and <= 1000000000, found 1.5");
  expect_part(toml_error("[train]\nsteps = 0\n"), "found 0");
  expect_part(toml_error("[train]\nsteps = 4294967297\n"), "found 4294967297");
  expect_part(toml_error("[train]\nsteps = nan\n"), "found nan");
  expect_part(toml_error("[train]\nrate = nan\n"), "found nan");
  expect_part(toml_error("[train]\nrate = '1'\n"), "expected a number, found the string");
  expect_part(toml_error("[train]\nseed = -1\n"), "found -1");
  expect_part(toml_error("[train]\nflag = 1\n"), "expected true or false, found 1");
  expect_part(toml_error("[train]\nname = 3\n"), "expected a string, found 3");
  expect_part(toml_error("[train]\nshade = 'drak'\n"),
              "expected one of light, dark, found the string \"drak\"; did you mean 'dark'?");
  expect_part(toml_error("[train]\nfiles = [1]\n"), "expected a list of strings, found an array");
  expect_part(toml_error("[train]\nsteps = 1979-05-27\n"), "found a date or time");
  expect_part(toml_error("[train.steps]\nx = 1\n"), "expected an integer >= 1 and <= 1000000000, found a table");
  expect_part(toml_error("train = 3\n"), "\"train\" is a section");
  expect_part(override_error("--train.files=[a]"), "expected a list of strings, found \"[a]\"");
  expect_part(override_error("--train.name=a\xff"), ", which is not UTF-8");
  expect_part(override_error("--train.files=a,\xc3("), ", which is not UTF-8");
  expect_part(override_error("--train.files=[1]"), "expected a list of strings, found \"[1]\"");
  EXPECT_EQ(override_error("--train=3"),
            "[config] --train is a section, but has a value here; set one of its keys instead");
  EXPECT_EQ(override_error("--train.steps"),
            "[config] expected --train.steps=VALUE with an integer >= 1 and <= 1000000000, found no value");
  EXPECT_EQ(error_of([] {
              Root r;
              ConfigTable(r).apply_environment(
                  [](const char* name) { return std::string_view(name) == "HPCDL_TRAIN_STEPS" ? "x" : nullptr; });
            }),
            "[config] HPCDL_TRAIN_STEPS: expected an integer >= 1 and <= 1000000000, found \"x\"");
  for (const char* said : {"--train.inner-part.clip", "--train.inner_part.clip"})  // the key once, as it was given
    EXPECT_TRUE(override_error(std::string(said) + "=x").starts_with(std::string("[config] ") + said + ": expected "));
  expect_part(override_error("--train.steps=12k"), "found \"12k\"");
  expect_part(override_error("--train.inner_part.bytes=12Q"), "expected a size such as 16G or 25MiB");
  expect_part(override_error("--train.inner_part.every=-1s"), "expected a time such as 30s or 10m >= 0, found \"-1s\"");
}

TEST(config, letters_of_every_alphabet_in_strings) {
  Root r;
  ConfigTable(r).apply_toml("top = \"\"\"a\\\n  \u04d2 \u5b57 \u1681\"\"\"\n",
                            "run.toml");  // after a line that ends in a backslash
  EXPECT_EQ(r.top, "a\u04d2 \u5b57 \u1681");
}

TEST(config, bad_toml_says_where) {
  expect_part(toml_error("[train]\nsteps = \n"), "run.toml:2");
  expect_part(toml_error("[train]\nsteps = 1\nsteps = 2\n"), "run.toml:3");
  expect_part(toml_error("a = " + std::string(100'000, '[')), "not valid TOML");
  expect_part(toml_error("\xff"), "not valid TOML");
  expect_part(toml_error("[\x01\r\n"), "not valid TOML");
  expect_part(toml_error("[train]\nname = \u04d2\n"), "run.toml:2: not valid TOML");
}

TEST(config, the_saved_config_reads_back) {
  Root r;
  ConfigTable t(r);
  for (const char* a : {"--train.seed=18446744073709551615", "--train.rate=0.30000001", "--train.shade=dark",
                        "--train.files=x,\"y", "--train.inner_part.every=0.1", "--train.name=tab\t\x7f\\ caf\u00e9"})
    t.apply_override(a);
  const std::string saved = t.to_toml();
  Root again;
  ConfigTable t2(again);
  t2.apply_toml(saved, "saved.toml");
  EXPECT_EQ(t2.to_toml(), saved);
  EXPECT_EQ(again.train.rate, r.train.rate);
  EXPECT_EQ(again.train.name, r.train.name);
  EXPECT_EQ(again.train.seed, UINT64_MAX);
  EXPECT_EQ(again.train.files, r.train.files);
}

TEST(config, help_and_schema_hold_every_field) {
  Root r;
  const ConfigTable t(r);
  const Json schema = t.schema();
  EXPECT_EQ(schema["properties"]["train"]["properties"]["steps"]["minimum"], 1.0);
  EXPECT_EQ(schema["properties"]["train"]["properties"]["shade"]["enum"].size(), 2u);
  EXPECT_EQ(schema["properties"]["train"]["properties"]["inner_part"]["properties"].size(), 3u);
  for (const auto& f : t.fields()) expect_part(t.help(), "--" + f.key);
  expect_part(t.help(), "steps to take (an integer >= 1 and <= 1000000000; default 100)");
}

TEST(config, mutated_files_never_crash) {
  const std::string good =
      "top = 'x'\n[train]\nflag = true\nsteps = 1.5e3\nname = \"n\\u00e9\"\nfiles = ['a', "
      "'b']\n[train.inner_part]\nbytes = '2MiB'\n";
  const std::string alphabet = "[]{}=.'\"\\\n\t #,-_0123456789eEuxnaftrue\xff";
  const Rng rng{11, 0};
  int rejected = 0;
  for (std::uint64_t round = 0; round < 5'000; ++round) {
    std::string bad = good;
    for (std::uint64_t k = 0; k <= rng.below(round * 16, 4); ++k) {
      const std::uint64_t at = round * 16 + 3 * k + 1;
      const std::size_t where = rng.below(at, bad.size());
      if (rng.bits(at + 1) % 3 == 0) bad.erase(where, 1 + rng.below(at + 2, 6));
      else if (rng.bits(at + 1) % 3 == 1) bad[where] = alphabet[rng.below(at + 2, alphabet.size())];
      else bad.insert(where, 1, alphabet[rng.below(at + 2, alphabet.size())]);
    }
    Root r;
    ConfigTable t(r);
    try {
      t.apply_toml(bad, "x");
    } catch (const UsageError&) {
      ++rejected;
    }
  }
  EXPECT_GT(rejected, 2'000);
}

struct Sizes {
  std::vector<std::int64_t> layers;
  void visit(auto&& f) { f("layers", layers, "of each stage", {.min = 1, .max = 9}); }
};

TEST(config_table, lists_of_integers) {
  Sizes sizes;
  ConfigTable table(sizes);
  table.set("layers", std::vector<std::int64_t>{1, 2}, "here");
  EXPECT_EQ(table.find("layers")->toml(), "[1, 2]");
  for (const char* text : {"3,4", "[3, 4]"}) {
    table.set("layers", ConfigText{text}, "here");
    EXPECT_EQ(sizes.layers, (std::vector<std::int64_t>{3, 4})) << text;
  }
  table.set("layers", std::vector<std::string>{}, "here");
  EXPECT_TRUE(sizes.layers.empty()) << "an empty array has no type";
  for (const char* text : {"3,x", "[3, 4.5]", "[3", "0", "10", "3,,4"})
    EXPECT_THROW(table.set("layers", ConfigText{text}, "here"), UsageError) << text;
  EXPECT_THROW(table.set("layers", std::vector<std::string>{"a"}, "here"), UsageError);
}

}  // namespace
}  // namespace hpcdl::io
