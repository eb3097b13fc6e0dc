#include "cli/dtype_option.h"

#include "cli/verb.h"
#include "hpcdl/core/units.h"

namespace hpcdl::cli {

models::ComputeChoice DtypeOption::choice() const { return io::enum_of<models::ComputeChoice>(word).value(); }

void add_dtype_option(const Command& sub, DtypeOption& o) {
  sub.option("--dtype", o.word,
             "Type of weights, activations, keys and values; auto: weights as in the files, and the rest f32 on a CPU, "
             "like the weights on a GPU")
      .one_of(io::enum_words<models::ComputeChoice>())
      .shows_default();
}

void say_converted(DType type, std::int64_t bytes) {
  if (bytes > 0)
    say("{}", dim(fmt::format("weights converted to {}: {} of memory", dtype_name(type),
                              format_bytes(static_cast<double>(bytes)))));
}

}  // namespace hpcdl::cli
