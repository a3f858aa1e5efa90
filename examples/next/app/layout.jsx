/** The frame of every page; Next asks for one. */
export const metadata = { title: "fireside in a Next app" };

export default function Layout({ children }) {
  return (
    <html lang="en">
      <body>{children}</body>
    </html>
  );
}
