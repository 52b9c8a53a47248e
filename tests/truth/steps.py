from tests.truth.cases import list_steps
from tests.truth.planning import plan_all
from tests.truth.published import PUBLISHED
if __name__ == "__main__":
    r = plan_all([*(p.step for p in PUBLISHED), *list_steps()], 2)
