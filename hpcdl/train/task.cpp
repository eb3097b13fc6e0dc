#include "hpcdl/train/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "hpcdl/comm/ledger.h"
#include "hpcdl/core/error.h"
#include "hpcdl/models/fingerprint.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/train/facts.h"
#include "hpcdl/train/init.h"
#include "hpcdl/train/run_model.h"

namespace hpcdl::train {

namespace {

std::unique_ptr<DataSource> open_source(RunConfig& config, const parallel::Mesh& mesh, Pool& pool,
                                        const Console& console) {
#define HPCDL_OPEN(name) \
  if (auto source = open_##name##_source(config, mesh, pool, console)) return source;
  HPCDL_DATA_SOURCES(HPCDL_OPEN)
#undef HPCDL_OPEN
  fail("train", "there is no data for family {}", io::enum_name(config.model.family));
}

/// Zeros as the tensors of a batch.
class BlankBatch {
 public:
  explicit BlankBatch(std::span<const models::InputSpec> inputs) {
    for (const auto& input : inputs) {
      const auto& t = memory_.emplace_back(input.spec).tensor;
      std::memset(t.data(), 0, static_cast<std::size_t>(t.bytes()));
    }
  }
  std::vector<View> views() const {
    std::vector<View> list;
    for (const auto& m : memory_) list.emplace_back(m.tensor);
    return list;
  }

 private:
  std::vector<OwnedTensor> memory_;
};

}  // namespace

std::vector<View> Batch::of(std::span<const models::InputSpec> inputs) const {
  std::vector<View> list;
  for (const auto& input : inputs) {
    const auto it = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.first == input.name; });
    require(it != tensors.end(), "train", "the model needs \"{}\", which the batches of this data do not have",
            input.name);
    list.push_back(it->second);
  }
  return list;
}

io::Json Score::metrics(const Units& units) const {
  io::Json line = {{"eval_loss", mean()}, {std::string("eval_") + units.name, counted}};
  if (units.classes) line["eval_accuracy"] = accuracy();
  else line["eval_perplexity"] = std::exp(mean());
  return line;
}

std::string Score::words(const Units& units) const {
  return fmt::format("loss {:.4f}, {} over {} {}", mean(),
                     units.classes ? fmt::format("accuracy {:.2f}%", 100 * accuracy())
                                   : fmt::format("perplexity {:.2f}", std::exp(mean())),
                     counted, units.targets);
}

Task::Task(RunConfig& config, const parallel::Mesh& mesh, Pool& pool, const Console& console)
    : config_(config), mesh_(mesh), data_(open_source(config, mesh, pool, console)) {
  std::string weights;
  if (!config.init.empty()) weights = models::fingerprint(init_folder(config));
  if (config.adapter.given()) base_ = {weights, config.adapter.scale(), config.base.words()};
  if (mesh.world().size() == 1) return;
  auto facts = data_->facts();
  if (!weights.empty()) facts.push_back({"model.init", "weights with the fingerprint " + weights});
  const auto of_model = model_facts(config);
  facts.insert(facts.end(), of_model.begin(), of_model.end());
  parallel::expect_agreement(mesh.world(), facts);
}

std::unique_ptr<models::Trainable> Task::make_model(std::optional<std::uint64_t> seed) const {
  return make_run_model(config_, mesh_, seed);
}

void Task::check_resumes(const std::filesystem::path& folder) const {
  data_->check_resumes(folder);
  const auto theirs = models::read_adapter_base(folder);
  if (theirs == base_) return;
  const auto words = [](const std::optional<models::AdapterBase>& b) {
    return b ? fmt::format("an adapter of scale {} of the model with the fingerprint {}{}", b->scale, b->fingerprint,
                           b->quantized.empty() ? "" : " in " + b->quantized)
             : "a whole model";
  };
  fail_usage("resume",
             "{} holds {}, but this run trains {}: keep model.init and [adapter] as they were, use another output "
             "folder, or set checkpoint.resume = \"none\"",
             folder.string(), words(theirs), words(base_));
}

void Task::save_beside(const std::filesystem::path& folder) const {
  write_model_config(folder, config_);
  if (base_) models::write_adapter_base(folder, *base_);
  data_->save_beside(folder);
}

std::int64_t Task::accumulate(TrainStep& step, std::int64_t number, std::int64_t micro, bool last) {
  samples_.note(number, micro, batch_.samples);
  step.accumulate(batch_.of(step.inputs()), number, micro, last);
  return batch_.valid;
}

std::string Task::describe_samples(std::int64_t number, std::int64_t micro, std::span<const std::int64_t> rows) const {
  return data_->describe_samples(samples_.in(number, micro, rows));
}

std::optional<Score> Task::evaluate(TrainStep& step, std::int64_t batches, const std::function<bool()>& goes_on) {
  step.gather();
  if (!data_->begin_evaluation()) return {};
  Score sum;
  const auto inputs = step.evaluation_inputs();
  const BlankBatch nothing(
      step.passes_together() ? std::span(inputs)
                             : std::span<models::InputSpec>());  // for a rank whose batches end before those of others
  for (std::int64_t i = 0; i < batches && goes_on(); ++i) {      // on each rank; batches use them in turns
    const auto batch = data_->next_evaluation();
    if (!step.passes_together() && !batch) break;
    if (step.passes_together() && !parallel::any_rank(mesh_.dp(), batch.has_value())) break;
    const comm::InPhase phase(mesh_.world().ledger(), comm::Phase::compute);
    const auto result = step.evaluate(batch ? batch->of(inputs) : nothing.views());
    if (batch) sum += {result.loss, result.correct, batch->valid};
  }
  return sum;
}

void Task::save_model(const models::Trainable& model, const std::filesystem::path& folder) const {
  // The ranks that together have one model; where others have other layers, these ranks have all of them now.
  // All of these help where each has rows of the vocabulary.
  const bool saves = mesh_.pp().rank() == 0 || config_.parallel.vocabulary == VocabularyPlace::pipeline;
  if (mesh_.data().rank() < mesh_.experts().size() && saves) model.save(folder);
  if (mesh_.world().rank() == 0) data_->save_beside(folder);
}

}  // namespace hpcdl::train
