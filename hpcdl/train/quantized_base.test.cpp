// Runs that train an adapter beside a base in few bits.

#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/models/adapter_files.h"
#include "hpcdl/models/export_bitsandbytes.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/ops/quant_linear/four_bit_values.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/quant/four_bits.h"
#include "hpcdl/quant/int8.h"
#include "hpcdl/testing/tune_toy.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

namespace fs = std::filesystem;

using Change = std::function<void(RunConfig&)>;
using models::BaseFormat;
using models::BaseOptions;

QuantFormat four_bits(const BaseOptions& base) {
  if (base.format == BaseFormat::fp4) return base.nested ? QuantFormat::fp4_double : QuantFormat::fp4;
  return base.nested ? QuantFormat::nf4_double : QuantFormat::nf4;
}

/// The values of a quantised matrix, (N, K), one by one.
std::vector<float> values_of(const quant::QuantTensors& q, BaseFormat format, std::int64_t n, std::int64_t k) {
  std::vector<float> values(static_cast<std::size_t>(n * k));
  for (std::int64_t i = 0; i < n * k; ++i) {
    auto& v = values[static_cast<std::size_t>(i)];
    if (format == BaseFormat::int8) {
      v = static_cast<float>(q.codes.tensor.ptr<std::int8_t>()[i]) * q.scale.tensor.ptr<float>()[i / k] * (1.0f / 127);
      continue;
    }
    const int byte = q.codes.tensor.ptr<std::uint8_t>()[i / 2];
    const auto* table = q.table.tensor ? q.table.tensor.ptr<float>() : nullptr;
    const float scale =
        table
            ? table[q.scale.tensor.ptr<std::uint8_t>()[i / 64]] * q.outer.tensor.ptr<float>()[i / 64 / 256] + table[256]
            : q.scale.tensor.ptr<float>()[i / 64];
    v = (format == BaseFormat::fp4 ? kFp4Values : kNf4Values)[i % 2 == 0 ? byte >> 4 : byte & 15] * scale;
  }
  return values;
}

struct QuantizedBase : ::testing::TestWithParam<io::Family> {
  /// A toy model in tmp/base/model whose matrices can be quantised.
  QuantizedBase() {
    RunConfig c;
    toy_config(c, tmp, "base");
    c.model.family = GetParam(), c.model.width = 64, c.model.ffn = 192;
    c.train.steps = 2;
    run(c, {});
    crc = base_crc();
  }
  ~QuantizedBase() override { EXPECT_EQ(base_crc(), crc) << "a base is never written"; }

  std::uint32_t base_crc() const { return io::crc32c(io::read_file(tmp / "base" / "model" / "model.safetensors")); }

  RunSummary tune(const std::string& name, const BaseOptions& base, const Change& change = {}, int ranks = 1,
                  const std::string& init = "base") {
    return testing::tune_toy(tmp, name, ranks, [&](RunConfig& c) {
      c.init = (tmp / init).string(), c.base = base;
      c.adapter.method = models::AdapterMethod::lora, c.adapter.r = 4;
      c.train.batch = 4 / ranks, c.train.lr = 1e-2;
      if (change) change(c);
    });
  }
  fs::path file(const std::string& name) const { return tmp / name / "model" / models::kAdapterTensors; }

  /// tmp/NAME: the base with the values that its quantised matrices have.
  void write_decoded(const std::string& name, const BaseOptions& base) {
    fs::copy(tmp / "base" / "model", tmp / name, fs::copy_options::recursive);
    const auto files = io::TensorFolder::open(tmp / "base" / "model");
    const bool in_out = GetParam() == io::Family::gpt2;
    Pool pool(1);
    std::vector<io::NamedSpec> specs;
    for (const auto& t : files.tensors()) specs.push_back({t.name, t.spec});
    io::SafeTensorsWriter writer(tmp / name / "model.safetensors", specs);
    for (const auto& t : files.tensors()) {
      const View v = files.at(t.name);
      const bool of_block = t.name.find("layers.") != std::string::npos || t.name.find("h.") != std::string::npos;
      if (!of_block || v.rank() != 2) {
        writer.write(t.name, v);
        continue;
      }
      const std::int64_t n = v[in_out ? 1 : 0], k = v[in_out ? 0 : 1];
      const auto q = base.format == BaseFormat::int8 ? quant::quantize_int8(pool, v, in_out)
                                                     : quant::quantize_four_bits(pool, v, four_bits(base), in_out);
      const auto values = values_of(q, base.format, n, k);
      const OwnedTensor to(v.spec());
      auto* numbers = static_cast<float*>(to.tensor.data());
      for (std::int64_t r = 0; r < n; ++r)
        for (std::int64_t c = 0; c < k; ++c)
          numbers[in_out ? c * n + r : r * k + c] = values[static_cast<std::size_t>(r * k + c)];
      writer.write(t.name, to.tensor);
    }
    writer.commit();
  }

  io::TempFolder tmp;
  std::uint32_t crc = 0;
};

constexpr BaseOptions kNf4{.format = BaseFormat::nf4}, kDouble{.format = BaseFormat::nf4, .nested = true},
    kFp4{.format = BaseFormat::fp4, .nested = true}, kInt8{.format = BaseFormat::int8};

TEST_P(QuantizedBase, trains_as_beside_its_own_values_in_f32) {
  for (const auto& base : {kNf4, kDouble, kFp4, kInt8}) {
    SCOPED_TRACE(base.words());
    const auto name = base.words();
    write_decoded("values " + name, base);
    const auto quantized = tune(name, base), exact = tune("exact " + name, {}, {}, 1, "values " + name);
    EXPECT_NEAR(quantized.loss, exact.loss, 1e-5 * exact.loss);
    EXPECT_LT(weights_apart(file(name), file("exact " + name)), 1e-4);
  }
}

TEST_P(QuantizedBase, a_stopped_run_goes_on_as_if_it_had_not_been) {
  for (const auto dtype : {Compute::f32, Compute::bf16}) {
    const auto kind = std::string(io::enum_name(dtype));
    const Change change = [&](RunConfig& c) {
      c.train.dtype = dtype, c.adapter.dropout = 0.1, c.train.accumulate = 2, c.checkpoint.every = 3;
    };
    tune("whole" + kind, kDouble, change);
    tune("half" + kind, kDouble, change);
    fs::remove_all(tmp / ("half" + kind) / "checkpoints" / "step_00000006");
    EXPECT_EQ(tune("half" + kind, kDouble, change).first_step, 3);
    expect_same_file(file("whole" + kind), file("half" + kind));
  }
}

TEST_P(QuantizedBase, checkpoints_hold_the_adapter_and_say_how_the_base_was_held) {
  tune("run", kDouble);
  const auto checkpoint = tmp / "run" / "checkpoints" / "step_00000006";
  const auto saved = io::TensorFolder::open(checkpoint / "model.safetensors");
  for (const auto& t : saved.tensors()) EXPECT_NE(t.name.find(".lora_"), std::string::npos) << t.name;
  const auto base = models::read_adapter_base(checkpoint);
  ASSERT_TRUE(base);
  EXPECT_EQ(base->quantized, "nf4 double");
  EXPECT_EQ(base, models::read_adapter_base(tmp / "run" / "model"));
  const auto refused = error_of([&] { tune("run", kNf4); });
  EXPECT_NE(refused.find("in nf4 double"), std::string::npos) << refused;
}

TEST_P(QuantizedBase, recomputing_changes_no_bit_and_ranks_train_what_one_rank_trains) {
  const auto alone = tune("one", kNf4);
  tune("again", kNf4, [](RunConfig& c) { c.train.recompute = true; });
  expect_same_file(file("one"), file("again"));
  const auto two = tune("two", kNf4, {}, 2);
  EXPECT_NEAR(two.loss, alone.loss, 1e-5 * alone.loss);
  EXPECT_LT(weights_apart(file("one"), file("two")), 2e-5);
}

TEST_P(QuantizedBase, takes_the_memory_that_its_format_needs) {
  models::AdapterOptions adapter;
  adapter.method = models::AdapterMethod::lora, adapter.r = 1;
  const auto bytes_of_blocks = [&](const BaseOptions& base, std::optional<std::uint64_t> seed) {
    Pool pool(1);
    const auto model =
        models::LanguageModel::open_for_adapting(tmp / "base" / "model", adapter, seed, {DType::none, &pool}, {}, base);
    EXPECT_EQ(model.codec() != nullptr, base.given());
    return model.bytes();
  };
  const auto plain = bytes_of_blocks({}, 1), nf4 = bytes_of_blocks(kNf4, 1), nested = bytes_of_blocks(kDouble, 1);
  EXPECT_LT(nested, nf4 + 8 * 2 * 1280);  // tables and padding of tensors as small as these
  EXPECT_LT(nf4, plain);
  EXPECT_EQ(bytes_of_blocks(kNf4, {}), nf4) << "a plan needs no memory";
}

TEST_P(QuantizedBase, options_that_do_not_fit_are_named) {
  const auto refused = [&](const BaseOptions& base, const Change& change = {}) {
    return error_of([&] { tune("none", base, change); });
  };
  EXPECT_NE(refused({.format = BaseFormat::int8, .nested = true}).find("model.double is for nf4 and fp4"),
            std::string::npos);
  EXPECT_NE(refused(kNf4, [](RunConfig& c) { c.adapter = {}; }).find("is for the frozen base of an adapter"),
            std::string::npos);
  EXPECT_NE(refused(kNf4, [](RunConfig& c) { c.parallel.tp = 2; }).find("set parallel.tp to 1"), std::string::npos);
}

/// A folder of bitsandbytes has the matrices of the blocks in NF4, as model.quantize makes them.
TEST_P(QuantizedBase, a_folder_that_is_quantised_is_a_base) {
  Pool pool(2);
  const auto plain = tmp / "base" / "model";
  if (GetParam() == io::Family::llama) {
    for (const bool nested : {false, true}) {
      const std::string name = nested ? "double" : "single";
      models::export_bitsandbytes(plain, models::read_hf_config(plain), tmp / ("bnb " + name), {.nested = nested},
                                  pool);
      const auto files = tune("of files " + name, {}, {}, 1, "bnb " + name);
      EXPECT_EQ(files.loss, tune("made here " + name, nested ? kDouble : kNf4).loss);
      expect_same_file(file("of files " + name), file("made here " + name));
    }
  }
  for (const std::string format : {"nf4", "fp4", "int8"}) {
    SCOPED_TRACE(format);
    models::quantize_folder(pool, plain, tmp / format, {.codec = quant::find_codec(format), .keep_odd = true});
    const auto crc_before = io::crc32c(io::read_file(tmp / format / "model.safetensors"));
    const auto whole = tune("whole " + format, {}, {}, 1, format);
    EXPECT_EQ(crc_before, io::crc32c(io::read_file(tmp / format / "model.safetensors")));
    const auto plain_run = tune("plain " + format, {});
    EXPECT_NEAR(whole.loss, plain_run.loss, 0.2 * plain_run.loss);
  }
  const auto refused = [&](const std::string& init, const BaseOptions& base, const Change& change = {}) {
    return error_of([&] { tune("refused", base, change, 1, init); });
  };
  EXPECT_NE(refused("nf4", kNf4).find("is quantised already"), std::string::npos) << refused("nf4", kNf4);
  const auto whole_model = refused("nf4", {}, [](RunConfig& c) { c.adapter = {}; });
  EXPECT_NE(whole_model.find("only an adapter can be trained"), std::string::npos) << whole_model;
  models::quantize_folder(pool, plain, tmp / "int4",
                          {.codec = quant::find_codec("int4"), .options = {.group = 32}, .keep_odd = true});
  EXPECT_NE(refused("int4", {}).find("have no gradients"), std::string::npos) << refused("int4", {});
}

INSTANTIATE_TEST_SUITE_P(families, QuantizedBase, ::testing::Values(io::Family::llama, io::Family::gpt2),
                         [](const auto& p) { return std::string(io::enum_name(p.param)); });

}  // namespace
}  // namespace hpcdl::train
