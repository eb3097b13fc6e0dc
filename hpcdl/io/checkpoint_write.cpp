// The writing half of checkpoint_files.h.

#include <nlohmann/json.hpp>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/checkpoint_part.h"

namespace hpcdl::io {

void write_checkpoint(const fs::path& folder, const TrainState& state, std::int64_t serial,
                      const CheckpointContent& content, Ranks& ranks) {
  const bool first = ranks.rank() == 0;
  agree(ranks, [&] {
    if (first) make_folder(folder);
  });
  expect_seen(folder, ranks);
  const SavePlan plan = plan_save(content, ranks);
  Json mine;
  agree(ranks, [&] {
    mine = write_part(folder, content, plan, ranks.rank(), [&](const WholeTensor& t) {
      OwnedTensor whole;
      bring_together(t, content, ranks, [&] {
        whole = OwnedTensor(t.spec);
        return whole.tensor;
      });
      return whole;
    });
  });
  const auto said = ranks.gather(mine.dump());
  agree(ranks, [&] {
    if (!first) return;
    std::vector<Json> parts;
    for (const auto& text : said) parts.push_back(Json::parse(text));
    complete_checkpoint(folder, state, serial, content, plan, parts);
  });
}

}  // namespace hpcdl::io
