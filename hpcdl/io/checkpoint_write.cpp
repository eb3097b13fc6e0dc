// The writing half of checkpoint_files.h: plan, transfers, files.

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "hpcdl/buffer.h"
#include "hpcdl/comm/transport.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/io/checkpoint_state.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/io/shard_plan.h"

namespace hpcdl::io {
namespace {

struct Plan {
  std::vector<WholeTensor> model, optimizer;
  std::vector<ModelFile> files;
};

std::vector<HeldTensor> held(const std::vector<NamedTensor>& tensors) {
  std::vector<HeldTensor> out;
  for (const auto& t : tensors) out.push_back({t.name, t.tensor.spec(), t.part});
  return out;
}

Plan make_plan(const CheckpointContent& content, Ranks& ranks) {
  const auto said = ranks.gather(Json({to_json(held(content.model)), to_json(held(content.optimizer))}).dump());
  std::vector<std::vector<HeldTensor>> model, optimizer;
  for (const auto& text : said) {
    const Json json = Json::parse(text);
    model.push_back(held_from(json[0]));
    optimizer.push_back(held_from(json[1]));
  }
  Plan plan{whole_tensors(model), whole_tensors(optimizer), {}};
  spread_tensors(plan.model, ranks.size());
  spread_slices(plan.optimizer, ranks.size());
  plan.files = model_files(plan.model, ranks.size(), content.max_file_bytes);
  return plan;
}

/// The work of one rank in a plan.
class Part {
 public:
  Part(const fs::path& folder, const CheckpointContent& content, const Plan& plan, Ranks& ranks)
      : folder_(folder), content_(content), plan_(plan), ranks_(ranks) {}

  /// The written files, for state.json.
  Json write();

 private:
  static constexpr auto kBytes = [](const OwnedTensor& t) {
    return std::span(t.buffer.data(), static_cast<std::size_t>(t.tensor.bytes()));
  };

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
  void write_tensor(const WholeTensor& t);
  OwnedTensor gathered(const WholeTensor& t);
  void write_slices();
  const NamedTensor& mine(const std::vector<NamedTensor>& tensors, const std::string& name) const {
    return *std::find_if(tensors.begin(), tensors.end(), [&](const NamedTensor& t) { return t.name == name; });
  }

  const fs::path& folder_;
  const CheckpointContent& content_;
  const Plan& plan_;
  Ranks& ranks_;
  std::map<std::string, std::unique_ptr<SafeTensorsWriter>> files_;
  std::map<std::string, SafeTensorsWriter*> file_of_;  // by tensor
  Json model_ = Json::object(), slices_ = Json::object(), done_ = Json::object();
  std::exception_ptr failed_;
};

void Part::open_files() {
  for (const auto& file : plan_.files) {
    if (file.writer != ranks_.rank()) continue;
    std::vector<NamedSpec> specs;
    for (const auto i : file.tensors) specs.push_back({plan_.model[i].name, plan_.model[i].spec});
    auto& writer = files_[file.name] = std::make_unique<SafeTensorsWriter>(folder_ / file.name, specs);
    for (const auto& s : specs) file_of_[s.name] = writer.get();
  }
}

/// Assembles the whole tensor from the parts of all ranks.
OwnedTensor Part::gathered(const WholeTensor& t) {
  OwnedTensor whole(t.spec);
  for (const auto& s : t.slices) {
    if (s.from == ranks_.rank()) {
      const auto& held = mine(content_.model, t.name);
      copy_common(whole.tensor, {}, held.tensor, held.part);
    } else {
      const OwnedTensor slice(s.local);
      ranks_.receive(kBytes(slice), s.from);
      copy_common(whole.tensor, {}, slice.tensor, s.part);
    }
  }
  return whole;
}

void Part::write_tensor(const WholeTensor& t) {
  if (t.writer != ranks_.rank()) {
    for (const auto& s : t.slices) {
      if (s.from != ranks_.rank()) continue;
      const auto& held = mine(content_.model, t.name);
      const OwnedTensor slice(s.local);
      copy_common(slice.tensor, s.part, held.tensor, held.part);
      ranks_.send(kBytes(slice), t.writer);
    }
    return;
  }
  const bool whole = mine(content_.model, t.name).part.all();
  const OwnedTensor assembled = whole ? OwnedTensor() : gathered(t);
  attempt([&] {
    const Tensor& tensor = whole ? mine(content_.model, t.name).tensor : assembled.tensor;
    model_[t.name] = {{"spec", to_string(t.spec)}, {"crc32c", file_of_.at(t.name)->write(t.name, tensor)}};
  });
}

void Part::write_slices() {
  std::vector<NamedSpec> specs;
  for (const auto& t : plan_.optimizer)
    for (const auto& s : t.slices)
      if (s.from == ranks_.rank()) specs.push_back({t.name, mine(content_.optimizer, t.name).tensor.spec()});
  if (specs.empty()) return;
  const std::string name = fmt::format("optim-rank{}.safetensors", ranks_.rank());
  SafeTensorsWriter writer(folder_ / name, specs);
  Json list = Json::object();
  for (const auto& t : specs) {
    const auto& held = mine(content_.optimizer, t.name);
    list[t.name] = to_json(held.part);
    list[t.name].update({{"spec", to_string(t.spec)}, {"crc32c", writer.write(t.name, held.tensor)}});
  }
  writer.commit();
  slices_[name] = list;
  done_[name] = file_entry(folder_ / name);
}

Json Part::write() {
  attempt([&] { open_files(); });
  for (const auto& t : plan_.model) write_tensor(t);
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

void write_index(const fs::path& folder, const Plan& plan) {
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

void write_checkpoint(const fs::path& folder, const TrainState& state, std::int64_t serial,
                      const CheckpointContent& content, Ranks& ranks) {
  const bool first = ranks.rank() == 0;
  agree(ranks, [&] {
    if (first) make_folder(folder);
  });
  Plan plan;
  agree(ranks, [&] {
    std::error_code ignored;
    require(fs::is_directory(folder, ignored), "io",
            "{}: rank 0 has made this folder, but rank {} does not see it: checkpoints must be in a folder that all "
            "hosts share",
            folder.string(), ranks.rank());
  });
  plan = make_plan(content, ranks);
  Json mine;
  agree(ranks, [&] { mine = Part(folder, content, plan, ranks).write(); });
  const auto parts = ranks.gather(mine.dump());
  agree(ranks, [&] {
    if (!first) return;
    write_index(folder, plan);
    Json tensors;
    for (const char* key : {"model", "optimizer", "files"}) tensors[key] = Json::object();
    for (const auto& text : parts) {
      const Json part = Json::parse(text);
      for (const char* key : {"model", "optimizer", "files"}) tensors[key].update(part[key]);
    }
    finish_checkpoint(folder, state, serial, ranks.size(), content, tensors);
  });
}

}  // namespace hpcdl::io
