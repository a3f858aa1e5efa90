/** A page rendered on the server, with the client component in it. */
import Completion from "./completion";

export default function Page() {
  return <Completion model="/model.gguf" />;
}
