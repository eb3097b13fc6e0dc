#include "hpcdl/train/run_table.h"

namespace hpcdl::train {

io::ConfigTable table_of(RunConfig& config) { return io::ConfigTable(config); }

}  // namespace hpcdl::train
