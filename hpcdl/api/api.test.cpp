// The functions of include/hpcdl give the same results as the internal functions that they call.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "hpcdl/comm.h"
#include "hpcdl/data.h"
#include "hpcdl/error.h"
#include "hpcdl/generate.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/ops.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/isa.h"
#include "hpcdl/train.h"

namespace hpcdl {
namespace {

constexpr std::int64_t kBatch = 4, kLength = 8, kVocab = 20;

Model small_model() {
  return Model::create(
      {.family = "llama", .layers = 2, .heads = 4, .width = 32, .context = 16, .vocab = kVocab, .kv_heads = 2}, 3);
}

std::vector<std::int32_t> ids(std::uint64_t stream, std::int64_t n = kBatch * kLength) {
  std::vector<std::int32_t> list(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = static_cast<std::int32_t>(Rng{5, stream}.below(i, kVocab));
  return list;
}

std::vector<float> values(const Tensor& t) { return {t.ptr<float>(), t.ptr<float>() + t.size()}; }

std::vector<float> weights(const Model& model) {
  std::vector<float> all;
  for (const auto& p : model.parameters()) {
    const auto one = values(p.value);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

OwnedTensor drawn(Shape shape, std::uint64_t stream) {
  OwnedTensor t({shape, DType::f32});
  for (std::int64_t i = 0; i < t.tensor.size(); ++i)
    t.tensor.ptr<float>()[i] = static_cast<float>(Rng{1, stream}.normal(static_cast<std::uint64_t>(i)));
  return t;
}

/// The op on tensors has the bits of the recorded one.
template <class Record, class Now> void expect_same(Record&& record, Now&& now) {
  Pool pool(2);
  StepParams params;
  Stream stream(pool, &params);
  Graph g({.inference = true});
  const Var y = g.keep(record(g));
  const Instance exe(g.finish());
  exe.run(stream);
  OwnedTensor direct(y.spec());
  now(stream, direct.tensor);
  EXPECT_EQ(values(direct.tensor), values(exe.tensor(y)));
}

TEST(api, ops_on_tensors_have_the_bits_of_recorded_ones) {
  const auto x = drawn({2, 6, 8}, 1), w = drawn({12, 8}, 2), b = drawn({12}, 3), gamma = drawn({8}, 4),
             beta = drawn({8}, 5);
  const auto c = [](Graph& g, const char* name, const OwnedTensor& t) { return g.constant(name, t.tensor); };
  expect_same([&](Graph& g) { return linear(c(g, "x", x), c(g, "w", w), c(g, "b", b), Activation::gelu_tanh); },
              [&](Stream& s, const Tensor& y) { linear(s, y, x.tensor, w.tensor, b.tensor, Activation::gelu_tanh); });
  expect_same([&](Graph& g) { return matmul(c(g, "x", x), c(g, "w", w), false, true, 0.5f); },
              [&](Stream& s, const Tensor& y) { matmul(s, y, x.tensor, w.tensor, false, true, 0.5f); });
  expect_same([&](Graph& g) { return attention(c(g, "q", x), c(g, "k", x), c(g, "v", x), 2); },
              [&](Stream& s, const Tensor& y) { attention(s, y, x.tensor, x.tensor, x.tensor, 2); });
  expect_same([&](Graph& g) { return softmax(c(g, "x", x), 2); },
              [&](Stream& s, const Tensor& y) { softmax(s, y, x.tensor, 2); });
  expect_same([&](Graph& g) { return layer_norm(c(g, "x", x), c(g, "gamma", gamma), c(g, "beta", beta)); },
              [&](Stream& s, const Tensor& y) { layer_norm(s, y, x.tensor, gamma.tensor, beta.tensor); });
  expect_same([&](Graph& g) { return rms_norm(c(g, "x", x), c(g, "gamma", gamma)); },
              [&](Stream& s, const Tensor& y) { rms_norm(s, y, x.tensor, gamma.tensor); });
  expect_same([&](Graph& g) { return relu(add(gelu(c(g, "x", x)), c(g, "x", x))); },
              [&](Stream& s, const Tensor& y) {
                gelu(s, y, x.tensor);
                add(s, y, y, x.tensor);
                relu(s, y, y);
              });
}

TEST(api, ops_refuse_what_does_not_fit) {
  Pool pool(1);
  Stream stream(pool);
  const auto x = drawn({2, 4}, 1), y = drawn({4, 2}, 2);
  EXPECT_THROW(softmax(stream, y.tensor, x.tensor), Error);
  EXPECT_THROW(add(stream, x.tensor, x.tensor, y.tensor), Error);
  const View columns(x.tensor.data(), {{2, 2}, DType::f32}, {4, 1}, Device());
  EXPECT_THROW(relu(stream, drawn({2, 2}, 3).tensor, columns), Error) << "strided";
}

TEST(api, micro_batches_and_ranks_give_the_step_of_one_batch) {
  Pool pool(1);
  const auto tokens = ids(1), targets = ids(2);
  Model one = small_model(), parts = small_model();
  Trainer whole(one, pool, {.batch = kBatch, .length = kLength});
  Trainer halves(parts, pool, {.batch = kBatch / 2, .length = kLength, .accumulate = true});
  const auto a = whole.step(tokens, targets, 1e-2);
  const std::size_t half = tokens.size() / 2;
  for (std::size_t i : {std::size_t{0}, half})
    halves.accumulate(std::span(tokens).subspan(i, half), std::span(targets).subspan(i, half), i == half);
  const auto b = halves.update(1e-2);
  EXPECT_NEAR(a.loss, b.loss, 1e-6);
  EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 1e-4);
  EXPECT_EQ(b.targets, kBatch * kLength);

  std::vector<double> losses(2);
  comm::run_ranks(2, [&](const comm::Group& world) {
    Pool own(1);
    Model model = small_model();
    Trainer trainer(model, own, {.batch = kBatch / 2, .length = kLength, .ranks = world});
    const auto at = static_cast<std::size_t>(world.rank()) * half;
    const auto r = trainer.step(std::span(tokens).subspan(at, half), std::span(targets).subspan(at, half), 1e-2);
    EXPECT_NEAR(r.gradient_norm, a.gradient_norm, 1e-4);
    losses[static_cast<std::size_t>(world.rank())] = r.loss;
  });
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_NEAR(losses[0], a.loss, 1e-6);
}

TEST(api, a_second_micro_batch_must_be_announced) {
  Pool pool(1);
  Model model = small_model();
  Trainer trainer(model, pool, {.batch = kBatch, .length = kLength});
  EXPECT_THROW(trainer.update(1e-3), Error);
  trainer.accumulate(ids(1), ids(2), true);
  EXPECT_THROW(trainer.accumulate(ids(1), ids(2), true), Error);
}

TEST(api, a_checkpoint_continues_with_the_same_bits) {
  const io::TempFolder tmp;
  const std::string folder = tmp / "checkpoints";
  Pool pool(1);
  const auto train = [&](Model& model, std::int64_t until, bool save) {
    Trainer trainer(model, pool, {.batch = kBatch, .length = kLength, .dropout = 0.1});
    if (!save) {
      EXPECT_EQ(trainer.load_checkpoint(folder), std::filesystem::exists(folder));
    }
    while (trainer.steps() < until) trainer.step(ids(static_cast<std::uint64_t>(trainer.steps())), ids(9), 1e-2);
    if (save) trainer.save_checkpoint(folder);
  };
  Model straight = small_model(), first = small_model(), second = small_model();
  train(straight, 6, false);
  train(first, 3, true);
  train(second, 6, false);
  EXPECT_EQ(weights(second), weights(straight));
  EXPECT_NE(weights(second), weights(first));
}

TEST(api, a_checkpoint_says_how_it_was_computed) {
  if (simd::best_isa() == simd::IsaKind::scalar) GTEST_SKIP() << "there is only one instruction set";
  const io::TempFolder tmp;
  Pool pool(1);
  Model model = small_model();
  const TrainOptions options{.batch = kBatch, .length = kLength};
  std::string heard;
  const auto load = [&](Trainer& trainer) {
    heard.clear();
    EXPECT_TRUE(trainer.load_checkpoint(tmp.path(), [&](const std::string& line) { heard += line + "\n"; }));
  };
  Trainer first(model, pool, options);
  first.step(ids(1), ids(2), 1e-2);
  first.save_checkpoint(tmp.path());
  Trainer same(model, pool, options);
  load(same);
  EXPECT_EQ(heard, "");
  ASSERT_TRUE(simd::set_active_isa(simd::IsaKind::scalar));
  Trainer other(model, pool, options);
  load(other);
  EXPECT_NE(heard.find(", now \"scalar\""), std::string::npos) << heard;
  Trainer late(model, pool, options);
  late.evaluate(ids(1), ids(2));
  load(late);
  simd::set_active_isa(simd::best_isa());
  EXPECT_NE(heard.find("load it into a new Trainer"), std::string::npos) << heard;
}

TEST(api, a_saved_model_opens_and_generates_the_same) {
  const io::TempFolder tmp;
  Pool pool(1);
  const Model model = small_model();
  model.save(tmp / "model");
  const Model again = Model::open(tmp / "model");
  EXPECT_EQ(again.shape().family, "llama");
  EXPECT_EQ(again.shape().kv_heads, 2);
  EXPECT_EQ(again.parameter_count(), model.parameter_count());
  std::vector<std::int32_t> heard;
  const auto a = Generator(model, pool).generate(ids(3, 4), 6, {.temperature = 1, .seed = 4}, [&](std::int32_t id) {
    heard.push_back(id);
    return true;
  });
  EXPECT_EQ(a, heard);
  EXPECT_EQ(a, Generator(again, pool).generate(ids(3, 4), 6, {.temperature = 1, .seed = 4}));
  EXPECT_EQ(a.size(), 6u);
}

TEST(api, text_becomes_batches) {
  const io::TempFolder tmp;
  Pool pool(2);
  std::ofstream(tmp / "text.txt") << [] {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "the cat sat on the mat " + std::to_string(i) + "\n";
    return text;
  }();
  const auto tokenizer = Tokenizer::train({tmp / "text.txt"}, 300, pool);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("the cat")), "the cat");
  tokenizer.save(tmp / "tokenizer.json");
  EXPECT_EQ(Tokenizer::load(tmp / "tokenizer.json").encode("on the mat"), tokenizer.encode("on the mat"));
  EXPECT_GT(tokenizer.write_tokens({tmp / "text.txt"}, tmp / "tokens.bin", pool), 1000);
  Batches batches({tmp / "tokens.bin"}, {.batch = 2, .length = 16, .vocab = tokenizer.vocab()});
  const auto batch = batches.next();
  ASSERT_EQ(batch.tokens.size(), 32u);
  EXPECT_EQ(batch.tokens[1], batch.targets[0]);
  EXPECT_GT(batches.samples_per_epoch(), 10);
}

TEST(api, a_run_follows_its_config) {
  const io::TempFolder tmp;
  std::ofstream(tmp / "text.txt") << std::string(3000, 'a') + std::string(3000, 'b');
  std::vector<std::string> lines;
  const auto result =
      run_training({.files = {},
                    .overrides = {"output=" + std::string(tmp / "run"), "data.text=" + std::string(tmp / "text.txt"),
                                  "data.cache=" + std::string(tmp / "cache"), "data.vocab_size=260",
                                  "data.val_fraction=0", "model.layers=1", "model.heads=2", "model.width=16",
                                  "model.context=16", "train.steps=3", "train.batch=2", "train.threads=1"},
                    .say = [&](std::string_view line) { lines.emplace_back(line); }});
  EXPECT_EQ(result.steps, 3);
  EXPECT_GT(result.loss, 0);
  EXPECT_TRUE(std::filesystem::exists(result.model + "/config.json"));
  EXPECT_FALSE(lines.empty());
  EXPECT_THROW(run_training({.files = {}, .overrides = {"train.stepz=3"}}), UsageError);
}

TEST(api, the_first_error_of_a_rank_comes_out) {
  EXPECT_THROW(comm::run_ranks(2,
                               [](const comm::Group& world) {
                                 if (world.rank() == 1) throw UsageError("rank 1 does not want to");
                                 Pool pool(1);
                                 world.barrier(Stream(pool)).wait();
                               }),
               Error);
  const comm::World alone;
  EXPECT_EQ(alone.size(), 1);
}

}  // namespace
}  // namespace hpcdl
