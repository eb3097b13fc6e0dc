// hpcdl ckpt diff: what differs between two checkpoints or model folders.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "cli/ckpt.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/io/checkpoint_place.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/io/stored_checkpoint.h"
#include "hpcdl/io/tensor_difference.h"
#include "hpcdl/io/toml_values.h"

namespace hpcdl::cli::ckpt {
namespace {

namespace fs = std::filesystem;

struct DiffOptions {
  std::string a, b;
  double tolerance = 0;
  bool json = false;
};

/// One of the two sides: a checkpoint or a model folder.
class Side {
 public:
  explicit Side(const std::string& path) {
    if (io::is_checkpoint(path) || !fs::exists(fs::path(path) / "config.json")) {
      path_ = io::find_checkpoint(path).checkpoint;
      checkpoint_.emplace(path_);
      const fs::path file = path_ / "config.toml";
      values_ = io::toml_values(io::read_file(file), file.string());
      const auto& s = checkpoint_->info().state;
      values_["step"] = std::to_string(s.step), values_["tokens"] = std::to_string(s.tokens);
      return;
    }
    path_ = path;
    folder_.emplace(io::TensorFolder::open(path_));
    model_ = io::stored_tensors(*folder_);
    const Json config = Json::parse(io::read_json(io::config_of_model(path_)).dump());
    for (const auto& [key, value] : config.items()) values_[key] = value.dump();
  }

  const fs::path& path() const { return path_; }
  bool has_optimizer() const { return checkpoint_.has_value(); }
  const std::map<std::string, std::string>& values() const { return values_; }
  const std::vector<io::StoredTensor>& model() const { return checkpoint_ ? checkpoint_->model() : model_; }
  const std::vector<io::StoredTensor>& optimizer() const { return checkpoint_->optimizer(); }

 private:
  fs::path path_;
  std::optional<io::StoredCheckpoint> checkpoint_;
  std::optional<io::TensorFolder> folder_;
  std::vector<io::StoredTensor> model_;
  std::map<std::string, std::string> values_;
};

struct KeyDifference {
  std::string key, a, b;  // empty: absent
};

/// A tensor that differs. `how`: in words, if its numbers were not compared.
struct TensorRow {
  std::string name, role, how = {};
  io::TensorDifference numbers = {};
};

class Diff {
 public:
  Diff(const DiffOptions& o, const Side& a, const Side& b) : o_(o), a_(a), b_(b), progress_(console()) {}

  int run() {
    const bool alike = a_.has_optimizer() == b_.has_optimizer();  // otherwise their configs have no key in common
    if (alike) compare_values();
    const bool both = a_.has_optimizer() && b_.has_optimizer();
    total_ = bytes_of(a_.model()) + (both ? bytes_of(a_.optimizer()) : 0);
    compare(a_.model(), b_.model(), "model");
    if (both) compare(a_.optimizer(), b_.optimizer(), "optimizer");
    progress_.end();
    std::ranges::stable_sort(rows_, [](const TensorRow& x, const TensorRow& y) {
      return std::pair(x.how.empty(), -x.numbers.relative()) < std::pair(y.how.empty(), -y.numbers.relative());
    });
    o_.json ? print_json(json()) : print_text(text());
    return keys_.empty() && rows_.empty() ? exit_code::kDone : kDiffers;
  }

 private:
  void compare_values() {
    auto keys = a_.values();
    keys.insert(b_.values().begin(), b_.values().end());
    const auto value = [](const Side& side, const std::string& key) {
      const auto it = side.values().find(key);
      return it == side.values().end() ? std::string() : it->second;
    };
    for (const auto& [key, _] : keys)
      if (value(a_, key) != value(b_, key)) keys_.push_back({key, value(a_, key), value(b_, key)});
  }

  void compare(const std::vector<io::StoredTensor>& a, const std::vector<io::StoredTensor>& b, const char* role) {
    std::map<std::string, const io::StoredTensor*> others;
    for (const auto& t : b) others[t.name] = &t;
    for (const auto& t : a) {
      const auto it = others.find(t.name);
      if (it == others.end()) rows_.push_back({t.name, role, "only in A"});
      else compare(t, *it->second, role);
      if (it != others.end()) others.erase(it);
      done_ += t.whole.bytes();
      if (total_ > 0) progress_.show("comparing", static_cast<double>(done_) / static_cast<double>(total_), {{t.name}});
    }
    for (const auto& [name, _] : others) rows_.push_back({name, role, "only in B"});
  }

  void compare(const io::StoredTensor& a, const io::StoredTensor& b, const char* role) {
    ++compared_;
    if (a.whole.shape != b.whole.shape)
      return rows_.push_back(
          {a.name, role, fmt::format("shape {} in A, {} in B", to_string(a.whole.shape), to_string(b.whole.shape))});
    const auto d = difference(a, b);
    const bool other_type = a.whole.dtype != b.whole.dtype;
    if (o_.tolerance > 0 ? d.relative() <= o_.tolerance : !d.bits && !other_type) return;
    std::string how;
    if (other_type) how = fmt::format("{} in A, {} in B", dtype_name(a.whole.dtype), dtype_name(b.whole.dtype));
    rows_.push_back({a.name, role, how, d});
  }

  Json json() const {
    Json keys = Json::array(), tensors = Json::array();
    const auto or_null = [](const std::string& value) { return value.empty() ? Json() : Json(value); };
    for (const auto& k : keys_) keys.push_back({{"key", k.key}, {"a", or_null(k.a)}, {"b", or_null(k.b)}});
    const auto number = [](double v) { return std::isfinite(v) ? Json(v) : Json("infinite"); };
    for (const auto& r : rows_) {
      Json row = {{"name", r.name}, {"role", r.role}};
      if (!r.how.empty()) row["how"] = r.how;
      if (r.numbers.magnitude > 0 || r.numbers.elements > 0 || r.numbers.bits)
        row.update({{"elements", r.numbers.elements},
                    {"largest", number(r.numbers.largest)},
                    {"relative", number(r.numbers.relative())}});
      tensors.push_back(std::move(row));
    }
    return {{"a", a_.path().string()},      {"b", b_.path().string()}, {"equal", keys_.empty() && rows_.empty()},
            {"tolerance", o_.tolerance},    {"compared", compared_},   {"config", std::move(keys)},
            {"tensors", std::move(tensors)}};
  }

  std::string text() const {
    std::string text = fmt::format("A {}\nB {}\n", a_.path().string(), b_.path().string());
    for (const auto& k : keys_)
      text += fmt::format("{}: {} in A, {} in B\n", k.key, k.a.empty() ? "absent" : k.a, k.b.empty() ? "absent" : k.b);
    std::size_t width = 0;
    for (const auto& r : rows_) width = std::max(width, r.name.size());
    for (const auto& r : rows_) {
      text += fmt::format("{:<{}}  {:<9}", r.name, width, r.role);
      if (!r.how.empty()) text += "  " + r.how;
      if (r.numbers.elements > 0)
        text += fmt::format("  largest difference {:.3g}, relative {:.3g}, in {} elements", r.numbers.largest,
                            r.numbers.relative(), r.numbers.elements);
      else if (r.how.empty()) text += "  other bits of the same numbers";
      text += "\n";
    }
    return text +
           fmt::format("{} tensors compared: {} differ; {} keys differ\n", compared_, rows_.size(), keys_.size());
  }

  const DiffOptions& o_;
  const Side &a_, &b_;
  Work progress_;
  std::vector<KeyDifference> keys_;
  std::vector<TensorRow> rows_;
  std::int64_t total_ = 0, done_ = 0, compared_ = 0;
};

}  // namespace

void add_diff(const Command& verb, Run& run) {
  add_verb<DiffOptions>(
      verb, run, "diff",
      "Compares two checkpoints or model folders, however they are sharded: keys of the config, and tensors with the "
      "largest difference first; exit code 0 if they are equal, 1 if not",
      [](const Command& sub, DiffOptions& o) {
        sub.option("a", o.a, "A checkpoint, a folder of checkpoints, the output of a run, or a model folder")
            .required();
        sub.option("b", o.b, "The other one").required();
        sub.option("--tolerance", o.tolerance,
                   "Tensors are equal if no element differs by more than this share of the largest magnitude in the "
                   "tensor, whatever their types; 0: only with the same type and bits")
            .range(0.0, 1.0)
            .shows_default();
        sub.flag("--json", o.json, "One JSON object on stdout");
      },
      [](const DiffOptions& o) {
        const Side a(o.a), b(o.b);
        return Diff(o, a, b).run();
      });
}

}  // namespace hpcdl::cli::ckpt
