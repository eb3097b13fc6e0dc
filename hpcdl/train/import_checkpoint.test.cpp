// Weights of other programs, under every spelling of their names, become the checkpoint with which a run starts.

#include "hpcdl/train/import_checkpoint.h"

#include <gtest/gtest.h>

#include <functional>

#include "hpcdl/buffer.h"
#include "hpcdl/io/stored_checkpoint.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/io/tensor_difference.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/synthetic_run.h"

namespace hpcdl::train {
namespace {

void tiny_config(RunConfig& c, io::Family family) {
  c.model = {.family = family, .layers = 2, .heads = 2, .width = 16, .context = 8, .vocab = 24};
}

/// The weights of a new model, and sources with its tensors under other names.
class Weights {
 public:
  explicit Weights(io::Family family) {
    tiny_config(config_, family);
    model_ = model_without_data(config_, 5);
    model_->fill();
  }
  using Rename = std::function<std::string(const std::string&)>;

  ImportSource source(const Rename& rename = [](const std::string& name) { return name; }) const {
    ImportSource s{.path = "source", .tensors = {}, .prefix = {}, .companions = {}};
    for (const auto& p : model_->parameters())
      s.tensors.push_back({rename(p.name), p.host.spec(), {{p.host, {}, nullptr}}});
    return s;
  }
  /// Imports into a new folder and expects the same numbers.
  ImportReport expect_imported(const ImportSource& s) const {
    const io::TempFolder tmp;
    RunConfig c;
    tiny_config(c, config_.model.family);
    const auto report = import_checkpoint(c, s, tmp / "run");
    const io::StoredCheckpoint stored(report.checkpoint);
    EXPECT_EQ(stored.model().size(), model_->parameters().size());
    for (const auto& t : stored.model())
      for (const auto& p : model_->parameters()) {
        if (p.name != t.name) continue;
        EXPECT_EQ(io::difference(t, {p.name, p.host.spec(), {{p.host, {}, nullptr}}}).elements, 0) << t.name;
      }
    return report;
  }
  std::string refused(const ImportSource& s) const {
    const io::TempFolder tmp;
    RunConfig c;
    tiny_config(c, config_.model.family);
    auto error = error_of([&] { import_checkpoint(c, s, tmp / "run"); });
    EXPECT_FALSE(std::filesystem::exists(tmp / "run/checkpoints/step_00000000"));
    return error;
  }

 private:
  RunConfig config_;
  std::unique_ptr<models::Trainable> model_;
};

std::string without(const std::string& name, const std::string& prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

TEST(import_checkpoint, every_family_under_every_prefix) {
  for (const auto family : models::text_families()) {
    const Weights w(family);
    EXPECT_EQ(w.expect_imported(w.source()).prefix, "");
    for (const std::string prefix : {"model.", "app.net.", "_orig_mod."})
      EXPECT_EQ(w.expect_imported(w.source([&](const auto& name) { return prefix + name; })).prefix, prefix);
  }
}

TEST(import_checkpoint, a_decoder_without_its_head_lacks_its_prefix) {
  const Weights w(io::Family::gpt2);
  const auto bare = [](const std::string& name) { return without(name, "transformer."); };
  EXPECT_EQ(w.expect_imported(w.source(bare)).prefix, "");
  EXPECT_EQ(w.expect_imported(w.source([&](const auto& name) { return "state." + bare(name); })).prefix, "state.");
}

TEST(import_checkpoint, what_is_not_of_the_model_is_left_out_or_refused) {
  const Weights w(io::Family::llama);
  const OwnedTensor other({{3}, DType::f32});
  const auto with = [&](const std::string& name) {
    auto s = w.source();
    s.tensors.push_back({name, other.tensor.spec(), {{other.tensor, {}, nullptr}}});
    return s;
  };
  EXPECT_EQ(w.expect_imported(with("lm_head.weight")).unused, std::vector<std::string>{"lm_head.weight"});
  EXPECT_EQ(w.expect_imported(with("optimizer.step")).unused.size(), 1u);
  EXPECT_NE(w.refused(with("model.layers.1.self_attn.q_proj.bias")).find("belongs to a layer"), std::string::npos);
}

TEST(import_checkpoint, missing_and_misshapen_tensors_are_named) {
  const Weights w(io::Family::llama);
  auto s = w.source();
  const std::string last = s.tensors.back().name;
  s.tensors.pop_back();
  EXPECT_NE(w.refused(s).find(last), std::string::npos);
  s = w.source();
  const OwnedTensor other({{3, 5}, DType::f32});
  s.tensors[0] = {s.tensors[0].name, other.tensor.spec(), {{other.tensor, {}, nullptr}}};
  EXPECT_NE(w.refused(s).find("the file has F32 (3, 5)"), std::string::npos) << w.refused(s);
  s = w.source();
  s.prefix = "modal.";
  EXPECT_NE(w.refused(s).find("of the model is not there; did you mean"), std::string::npos) << w.refused(s);
}

TEST(import_checkpoint, two_copies_ask_for_a_prefix) {
  const Weights w(io::Family::llama);
  auto s = w.source([](const auto& name) { return "model." + name; });
  for (const auto& t : w.source([](const auto& name) { return "average." + name; }).tensors) s.tensors.push_back(t);
  EXPECT_NE(w.refused(s).find("with the prefixes average., model.: choose one with --prefix"), std::string::npos)
      << w.refused(s);
  s.prefix = "average.";
  EXPECT_EQ(w.expect_imported(s).unused.size(), s.tensors.size() / 2);
}

TEST(import_checkpoint, the_config_of_a_folder_is_taken_over_unless_it_is_contradicted) {
  const io::TempFolder tmp;
  RunConfig folder, run, other;
  tiny_config(folder, io::Family::llama);
  models::resolve(folder.model);
  models::write_hf_config(tmp.path(), folder.model);
  take_over_model(run, tmp.path());
  EXPECT_EQ(run.model.width, 16);
  other.model.layers = 3;
  EXPECT_NE(error_of([&] { take_over_model(other, tmp.path()); }).find("model.layers = 3, where it has 2"),
            std::string::npos);
  folder.model.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 2};
  models::write_hf_config(tmp.path(), folder.model);
  RunConfig third;
  EXPECT_NE(error_of([&] { take_over_model(third, tmp.path()); }).find("no key of [model] can say"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::train
