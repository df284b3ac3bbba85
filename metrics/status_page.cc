#include "metrics/status_page.h"

namespace refract::metrics {

Route StatusPageRoute() {
  return {.target = "/", .changes = false, .answer = [] {
            return Route::Answer{
                .type = "text/html; charset=utf-8",
                .body = base::FillPage(StatusPageFiles(), "{}")};
          }};
}

}  // namespace refract::metrics
