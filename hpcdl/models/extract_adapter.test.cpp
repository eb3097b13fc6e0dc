#include "hpcdl/models/extract_adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "hpcdl/core/error.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/low_rank.h"
#include "hpcdl/models/merge_adapter.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/rng.h"

namespace hpcdl::models {
namespace {

/// Squared distance of left^T right from d.
double left_over(const Tensor& d, const LowRank& f) {
  const auto r = f.left.tensor[0], rows = d[0], columns = d[1];
  double sum = 0;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      double v = d.ptr<float>()[i * columns + j];
      for (std::int64_t k = 0; k < r; ++k)
        v -= double{f.left.tensor.ptr<float>()[k * rows + i]} * double{f.right.tensor.ptr<float>()[k * columns + j]};
      sum += v * v;
    }
  return sum;
}

TEST(low_rank, a_matrix_of_that_rank_is_found_again) {
  Pool pool(2);
  for (const auto& [rows, columns, rank] : {std::array<std::int64_t, 3>{1, 1, 1}, {5, 9, 2}, {40, 7, 7}, {3, 64, 1}}) {
    OwnedTensor d({{rows, columns}, DType::f32});
    const Rng rng{4, static_cast<std::uint64_t>(rows)};
    double size = 0;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) {
        double v = 0;
        for (std::int64_t k = 0; k < rank; ++k)
          v += rng.normal(static_cast<std::uint64_t>(i * 100 + k)) *
               rng.normal(static_cast<std::uint64_t>(10'000 + j * 100 + k));
        d.tensor.ptr<float>()[i * columns + j] = static_cast<float>(v);
        size += v * v;
      }
    const auto exact = nearest_of_rank(pool, d.tensor, rank);
    EXPECT_LT(left_over(d.tensor, exact), 1e-10 * size) << rows << " x " << columns;
    const auto more = nearest_of_rank(pool, d.tensor, std::min(rows, columns));
    EXPECT_LT(left_over(d.tensor, more), 1e-10 * size) << rows << " x " << columns;
  }
}

TEST(low_rank, the_largest_singular_values_are_kept) {
  Pool pool(2);
  const float values[] = {1, 9, 3, 5};
  OwnedTensor d({{4, 6}, DType::f32});
  for (std::int64_t i = 0; i < 24; ++i) d.tensor.ptr<float>()[i] = i % 7 == 0 && i < 22 ? values[i / 7] : 0;
  EXPECT_NEAR(left_over(d.tensor, nearest_of_rank(pool, d.tensor, 2)), 1 + 9, 1e-4);
  EXPECT_NEAR(left_over(d.tensor, nearest_of_rank(pool, d.tensor, 3)), 1, 1e-4);
  OwnedTensor zero({{4, 6}, DType::f32});
  std::fill_n(zero.tensor.ptr<float>(), 24, 0.0f);
  EXPECT_EQ(left_over(zero.tensor, nearest_of_rank(pool, zero.tensor, 2)), 0);
}

double apart(const io::fs::path& a, const io::fs::path& b) {
  const auto one = io::TensorFolder::open(a), two = io::TensorFolder::open(b);
  double worst = 0;
  for (const auto& t : one.tensors()) {
    const View x = one.at(t.name), y = two.at(t.name);
    for (std::int64_t i = 0; i < x.size(); ++i)
      worst = std::max(worst, std::fabs(double{x.ptr<float>()[i]} - double{y.ptr<float>()[i]}));
  }
  return worst;
}

TEST(extract_adapter, undoes_a_merge) {
  Pool pool(2);
  for (const auto family : text_families()) {
    const io::TempFolder tmp;
    LanguageModel::create(tiny(family), 7, false).save(tmp / "base");
    const AdapterOptions options{.method = AdapterMethod::lora, .r = 3, .alpha = 5};
    auto model = LanguageModel::open_for_adapting(tmp / "base", options, 11, {DType::f32, &pool});
    std::uint64_t stream = 0;
    for (const auto& p : model.parameters()) {
      const Rng rng{5, ++stream};
      for (std::int64_t i = 0; i < p.memory.size(); ++i)
        p.memory.ptr<float>()[i] = static_cast<float>(rng.normal(static_cast<std::uint64_t>(i))) * 0.1f;
    }
    model.save(tmp / "adapter");
    const auto merge = [&](const char* adapter, const char* to) {
      io::make_folder(tmp / to);
      merge_adapter(pool, tmp / "base", AdapterFolder::open(tmp / adapter), tmp / to);
    };
    merge("adapter", "merged");
    EXPECT_GT(apart(tmp / "base", tmp / "merged"), 0.1) << io::enum_name(family);
    const auto found = extract_adapter(pool, tmp / "base", tmp / "merged", tmp / "again", 3);
    EXPECT_GE(found.layers, 8);
    EXPECT_LT(found.relative_error(), 1e-5);
    EXPECT_TRUE(found.others.empty());
    merge("again", "twice");
    EXPECT_LT(apart(tmp / "merged", tmp / "twice"), 1e-5) << io::enum_name(family);
  }
}

TEST(extract_adapter, says_what_it_leaves_out_and_refuses_what_does_not_fit) {
  Pool pool(2);
  const io::TempFolder tmp;
  LanguageModel::create(tiny(io::Family::llama), 7, false).save(tmp / "base");
  LanguageModel::create(tiny(io::Family::llama), 8, false).save(tmp / "other");
  const auto found = extract_adapter(pool, tmp / "base", tmp / "other", tmp / "adapter", 2);
  EXPECT_EQ(found.layers, 14);
  EXPECT_GT(found.relative_error(), 0.5);
  EXPECT_EQ(found.others, (std::vector<std::string>{"model.embed_tokens.weight", "lm_head.weight"}));
  const auto refused = [&](const char* tuned, std::int64_t r) -> std::string {
    try {
      extract_adapter(pool, tmp / "base", tmp / tuned, tmp / "none", r);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_NE(refused("other", 33).find("choose at most 32"), std::string::npos);
  EXPECT_NE(refused("base", 2).find("expected linear layers that differ, found none"), std::string::npos);
  auto wide = tiny(io::Family::llama);
  wide.vocab = 60;
  LanguageModel::create(wide, 7, false).save(tmp / "wide");
  EXPECT_NE(refused("wide", 2).find("model.embed_tokens.weight: expected"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::models
