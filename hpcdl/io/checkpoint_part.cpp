#include "hpcdl/io/checkpoint_part.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/checkpoint_state.h"
#include "hpcdl/io/safetensors_writer.h"

namespace hpcdl::io {
namespace {

std::vector<HeldTensor> held(const std::vector<NamedTensor>& tensors) {
  std::vector<HeldTensor> out;
  for (const auto& t : tensors) out.push_back({t.name, t.tensor.spec(), t.part});
  return out;
}

/// The work of one rank in a plan.
class Writing {
 public:
  Writing(const fs::path& folder, const CheckpointContent& content, const SavePlan& plan, int rank)
      : folder_(folder), content_(content), plan_(plan), rank_(rank) {}

  Json write(const std::function<OwnedTensor(const WholeTensor&)>& together);

 private:
  /// A rank that fails continues to send and receive, so that the others reach the end, where they learn of it.
  template <class F> void attempt(F f) {
    if (failed_) return;
    try {
      f();
    } catch (...) {
      failed_ = std::current_exception();
    }
  }
  void open_files();
  void write_slices();

  const fs::path& folder_;
  const CheckpointContent& content_;
  const SavePlan& plan_;
  int rank_;
  std::map<std::string, std::unique_ptr<SafeTensorsWriter>> files_;
  std::map<std::string, SafeTensorsWriter*> file_of_;  // by tensor
  Json model_ = Json::object(), slices_ = Json::object(), done_ = Json::object();
  std::exception_ptr failed_;
};

void Writing::open_files() {
  for (const auto& file : plan_.files) {
    if (file.writer != rank_) continue;
    std::vector<NamedSpec> specs;
    for (const auto i : file.tensors) specs.push_back({plan_.model[i].name, plan_.model[i].spec});
    auto& writer = files_[file.name] = std::make_unique<SafeTensorsWriter>(folder_ / file.name, specs);
    for (const auto& s : specs) file_of_[s.name] = writer.get();
  }
}

void Writing::write_slices() {
  std::vector<NamedSpec> specs;
  for (const auto& t : plan_.optimizer)
    for (const auto& s : t.slices)
      if (s.from == rank_) specs.push_back({t.name, named(content_.optimizer, t.name).tensor.spec()});
  if (specs.empty()) return;
  const std::string name = fmt::format("optim-rank{}.safetensors", rank_);
  SafeTensorsWriter writer(folder_ / name, specs);
  Json list = Json::object();
  for (const auto& t : specs) {
    const auto& held = named(content_.optimizer, t.name);
    list[t.name] = to_json(held.part);
    list[t.name].update({{"spec", to_string(t.spec)}, {"crc32c", writer.write(t.name, held.tensor)}});
  }
  writer.commit();
  slices_[name] = list;
  done_[name] = file_entry(folder_ / name);
}

Json Writing::write(const std::function<OwnedTensor(const WholeTensor&)>& together) {
  attempt([&] { open_files(); });
  for (const auto& t : plan_.model) {
    const OwnedTensor assembled = together ? together(t) : OwnedTensor();
    if (t.writer != rank_) continue;
    attempt([&] {
      const Tensor& tensor = assembled.tensor.spec() ? assembled.tensor : named(content_.model, t.name).tensor;
      model_[t.name] = {{"spec", to_string(t.spec)}, {"crc32c", file_of_.at(t.name)->write(t.name, tensor)}};
    });
  }
  attempt([&] { write_slices(); });
  attempt([&] {
    for (auto& [name, writer] : files_) {
      writer->commit();
      done_[name] = file_entry(folder_ / name);
    }
  });
  if (failed_) std::rethrow_exception(failed_);
  return {{"model", model_}, {"optimizer", slices_}, {"files", done_}};
}

void write_index(const fs::path& folder, const SavePlan& plan) {
  if (plan.files.size() == 1) return;
  Json json = {{"metadata", {{"total_size", 0}}}, {"weight_map", Json::object()}};
  std::int64_t bytes = 0;
  for (const auto& file : plan.files)
    for (const auto i : file.tensors) {
      json["weight_map"][plan.model[i].name] = file.name;
      bytes += plan.model[i].spec.bytes();
    }
  json["metadata"]["total_size"] = bytes;
  write_file_atomic(folder / "model.safetensors.index.json", json.dump(2) + "\n");
}

}  // namespace

void expect_seen(const fs::path& folder, Ranks& ranks) {
  agree(ranks, [&] {
    std::error_code ignored;
    require(fs::is_directory(folder, ignored), "io",
            "{}: rank 0 has made this folder, but rank {} does not see it: checkpoints must be in a folder that all "
            "hosts share",
            folder.string(), ranks.rank());
  });
}

SavePlan plan_save(const CheckpointContent& content, Ranks& ranks) {
  const auto said = ranks.gather(Json({to_json(held(content.model)), to_json(held(content.optimizer))}).dump());
  std::vector<std::vector<HeldTensor>> model, optimizer;
  for (const auto& text : said) {
    const Json json = Json::parse(text);
    model.push_back(held_from(json[0]));
    optimizer.push_back(held_from(json[1]));
  }
  SavePlan plan{whole_tensors(model), whole_tensors(optimizer), {}};
  spread_tensors(plan.model, ranks.size());
  spread_slices(plan.optimizer, ranks.size());
  plan.files = model_files(plan.model, ranks.size(), content.max_file_bytes);
  return plan;
}

const NamedTensor& named(const std::vector<NamedTensor>& tensors, const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(), [&](const NamedTensor& t) { return t.name == name; });
}

Tensor bring_together(const WholeTensor& t, const CheckpointContent& content, Ranks& ranks,
                      const std::function<Tensor()>& memory) {
  const auto bytes = [](const OwnedTensor& x) {
    return std::span(x.buffer.data(), static_cast<std::size_t>(x.tensor.bytes()));
  };
  if (t.writer != ranks.rank()) {
    for (const auto& s : t.slices) {
      if (s.from != ranks.rank()) continue;
      const auto& held = named(content.model, t.name);
      const OwnedTensor slice(s.local);
      copy_common(slice.tensor, s.part, held.tensor, held.part);
      ranks.send(bytes(slice), t.writer);
    }
    return {};
  }
  if (named(content.model, t.name).part.all()) return {};
  const Tensor whole = memory();
  for (const auto& s : t.slices) {
    if (s.from == ranks.rank()) {
      const auto& held = named(content.model, t.name);
      copy_common(whole, {}, held.tensor, held.part);
    } else {
      const OwnedTensor slice(s.local);
      ranks.receive(bytes(slice), s.from);
      copy_common(whole, {}, slice.tensor, s.part);
    }
  }
  return whole;
}

Json write_part(const fs::path& folder, const CheckpointContent& content, const SavePlan& plan, int rank,
                const std::function<OwnedTensor(const WholeTensor&)>& together) {
  return Writing(folder, content, plan, rank).write(together);
}

void complete_checkpoint(const fs::path& folder, const TrainState& state, std::int64_t serial,
                         const CheckpointContent& content, const SavePlan& plan, std::span<const Json> parts) {
  write_index(folder, plan);
  Json tensors;
  for (const char* key : {"model", "optimizer", "files"}) tensors[key] = Json::object();
  for (const auto& part : parts)
    for (const char* key : {"model", "optimizer", "files"}) tensors[key].update(part[key]);
  finish_checkpoint(folder, state, serial, static_cast<int>(parts.size()), content, tensors);
}

}  // namespace hpcdl::io
