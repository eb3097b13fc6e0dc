#pragma once
// For verbs that continue texts: the ranks that a launcher has started share the model. Rank 0 works as if it were alone,
// and the others follow it.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/tune_option.h"
#include "cli/verb.h"
#include "cli/world.h"
#include "hpcdl/infer/follow.h"
#include "hpcdl/infer/rank_link.h"
#include "hpcdl/serve/options.h"

namespace hpcdl::cli {

class ModelRanks {
 public:
  /// Collective. Throws parallel::Disagreement if the ranks differ in the program, the verb, or what is given here.
  ModelRanks(const comm::Joined& joined, const std::string& verb, const std::vector<parallel::Fact>& same);

  int size() const { return joined_.place().world; }
  bool leads() const { return joined_.place().rank == 0; }
  /// Null: there are no others.
  infer::RankLink* link() { return link_ ? &*link_ : nullptr; }
  const comm::Group& world() const { return joined_.world(); }
  models::Sharing sharing() const { return link_ ? link_->sharing() : nullptr; }
  /// `asked`; or, if that is 0 and ranks share the model, the share of this rank in the processors of its host.
  int threads(int asked) const;
  /// Rank 0: f(), and then the others end, too. They follow until then, and return 0. If f() throws, on_ranks() tells them.
  template <class F> int lead(const models::LanguageModel& model, Pool& pool, const TuneOption& tune, F&& f) {
    if (!link_) return f();
    if (!leads()) return follow(model, pool, tune), exit_code::kDone;
    const int code = f();
    link_->end();
    return code;
  }
  void follow(const models::LanguageModel& model, Pool& pool, const TuneOption& tune);

 private:
  const comm::Joined& joined_;
  std::optional<infer::RankLink> link_;
};

/// The ranks but the first: loads what this rank has of the model, and follows.
int follow(ModelRanks& ranks, const serve::EngineSection& options, const TuneOption& tune);

/// What ranks that share a model compare.
std::vector<parallel::Fact> facts_of_model(const std::filesystem::path& folder, const std::string& device,
                                           const std::string& dtype, const std::string& kv, const TuneOption& tune);

}  // namespace hpcdl::cli
